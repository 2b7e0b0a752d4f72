"""Rollouts: how one begins, and the context manager by which a user says where one begins and ends."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from lightning_sdk.client import faults, runtime, scope
from lightning_sdk.client.otel import active_ids
from lightning_sdk.errors import ConfigError
from lightning_sdk.ids import fitted_id, new_id

if TYPE_CHECKING:
    from lightning_sdk.records import OutcomeName


_NOTHING_TO_TRUNCATE: Final = (
    "truncate() found no open rollout that began in this process, and changes nothing: call it inside the rollout, "
    "in the process where that began, before it ends"
)


def begin_rollout(
    active: runtime.Runtime,
    *,
    rollout_id: str | None = None,
    attempt: int = 1,
    task_id: str | None = None,
    run_id: str | None = None,
    split: str | None = None,
    group_id: str | None = None,
    sampling_round: int = 0,
    metadata: Mapping[str, Any] | None = None,
) -> scope.Scope:
    """Start a rollout and return its top, which is not entered.

    What is None comes from the configuration, or is made.
    """
    from lightning_sdk.client import journal

    rollout_id = rollout_id or new_id("ro")
    run_id = run_id or active.run_id
    split = split or active.config.split
    if group_id is None:
        group_id = rollout_id if task_id is None else group_of(run_id, split, task_id, sampling_round)
    begun = scope.Rollout(
        active,
        rollout_id=rollout_id,
        attempt=attempt,
        group_id=group_id,
        run_id=run_id,
        task_id=task_id,
        split=split,
    )
    journal.start_rollout(begun, metadata or {}, active_ids())
    return scope.Scope(begun)


def group_of(run_id: str, split: str | None, task_id: str, sampling_round: int) -> str:
    """The group of all rollouts of one task in one sampling round: the same in every process."""
    import hashlib
    import json

    key = json.dumps([run_id, split or "", task_id, sampling_round]).encode()
    return f"gr_{hashlib.sha256(key).hexdigest()[:32]}"


class rollout:  # noqa: N801 - used as a statement: `with rollout(task_id="7"):`
    """One execution of the agent on a task: `with rollout(task_id=…):`, or `async with`.

    A `trace_agent` inside is an agent of this rollout; outside any rollout each outermost one is a rollout of
    its own. A rollout inside a rollout is independent of it. An exception that leaves the block makes it
    failed (a
    cancellation: cancelled) and goes on unchanged.

    An id that cannot be stored as it is (longer than 256 characters, or not Unicode) is escaped, or ends in a hash.

    Args:
        task_id: the row of the data set. Rollouts of one task can be compared: they share a group.
        metadata: values to keep with it; what JSON cannot say is kept as its repr.
        run_id: default: that of `init`.
        split: default: that of `init`.
        group_id: default: made of run, split, task and round; without a task the rollout is a group of its
            own.
        round: the sampling round, for tasks that are sampled again later in a run.
        rollout_id: default: a fresh one.
        attempt: from 1; only the final attempt of a rollout counts.

    Raises:
        ConfigError: an argument cannot be used.
    """

    __slots__ = ("__weakref__", "_before", "_left", "_options", "_pid", "_top", "rollout_id")

    def __init__(
        self,
        task_id: str | int | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        split: str | None = None,
        group_id: str | None = None,
        round: int = 0,
        rollout_id: str | None = None,
        attempt: int = 1,
    ) -> None:
        if isinstance(task_id, int) and not isinstance(task_id, bool):
            task_id = str(task_id)
        names: dict[str, Any] = {
            "task_id": task_id,
            "run_id": run_id,
            "split": split,
            "group_id": group_id,
            "rollout_id": rollout_id,
        }
        for name, value in names.items():
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"rollout({name}={value!r}): expected a string that is not empty")
        # Names of files and rows come from data, which must not stop the agent.
        names = {name: None if value is None else fitted_id(value) for name, value in names.items()}
        if metadata is not None and not isinstance(metadata, Mapping):
            raise ConfigError(
                f"rollout(metadata=…) is a {type(metadata).__name__}: expected a mapping of names to values"
            )
        _check_number("round", round, 0)
        _check_number("attempt", attempt, 1)
        self.rollout_id: str = names["rollout_id"] or new_id("ro")
        self._options: dict[str, Any] = {
            **names,
            "rollout_id": self.rollout_id,
            "attempt": attempt,
            "sampling_round": round,
            "metadata": metadata,
        }
        self._top: scope.Scope | None = None
        self._before: scope.Scope | None = None
        self._pid = 0
        self._left: weakref.finalize[..., rollout] | None = None

    def __enter__(self) -> rollout:
        if self._pid:
            raise RuntimeError(
                f"rollout {self.rollout_id} was entered before: make another for each execution"
            )
        self._pid = os.getpid()
        self._before = scope.get_current()
        try:
            with faults.guard("rollout"):
                self._top = begin_rollout(runtime.active(), **self._options)
                # For a block that a signal handler leaves just before our `__exit__` begins.
                self._left = weakref.finalize(self, _leave, self._top, self._before, self._pid)
                self._left.atexit = False  # type: ignore[misc]
                scope.enter(self._top)
        except BaseException as error:
            scope.set_current(self._before)
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._top is not None:
            try:
                _leave(self._top, self._before, self._pid, error)
            except BaseException:
                if scope.get_current() is self._top:
                    scope.set_current(self._before)
                raise
            finally:
                self._before = None
                if self._left is not None:
                    self._left.detach()

    async def __aenter__(self) -> rollout:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


_NEVER_LEFT: Final = GeneratorExit()


def _leave(
    top: scope.Scope, before: scope.Scope | None, pid: int, error: BaseException | None = _NEVER_LEFT
) -> None:
    """End the rollout and make what was before it current again.

    Args:
        top: its top.
        before: what was current before it.
        pid: the process in which it began. A forked child inherits it, but it is its parent's to end.
        error: what left the block. By default: nobody knows how it was left.
    """
    scope.leave(top, before)
    if pid != os.getpid():
        return
    from lightning_sdk.client import journal

    outcome: OutcomeName = "ok"
    if error is not None:
        outcome = "error" if isinstance(error, Exception) else "cancelled"
    try:
        with faults.guard("rollout"):
            journal.end_rollout(top, outcome, error)
    finally:
        scope.remember_ended(top)


def _check_number(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 31:
        raise ConfigError(f"rollout({name}={value!r}): expected a whole number from {least}")


def truncate(reason: str) -> None:
    """Say that something cuts the present rollout off: its outcome will be truncated, not that of its agent.

    Call it before the rollout ends, also where an exception is about to leave it. What cut it first counts: a
    later reason changes nothing.

    Args:
        reason: "turn_limit", "timeout", "context" (the model's context is full), or a word of your own.

    Raises:
        ValueError: `reason` is no string, or empty.
    """
    if not isinstance(reason, str) or not reason:
        raise ValueError(
            f"truncate({reason!r}): expected a word for what cut the rollout off, such as 'turn_limit'"
        )
    with faults.guard("truncate"):
        current = scope.current()
        cut = None if current is None else current.rollout
        if cut is None or cut.ended or cut.pid != os.getpid():
            faults.count("truncations_without_rollout")
            runtime.active().warn_once(_NOTHING_TO_TRUNCATE)
        elif not cut.truncation_reason:
            cut.truncation_reason = fitted_id(reason)


def current_rollout() -> scope.RolloutHandle | None:
    """The rollout that the present code runs in; None outside any."""
    current = scope.current()
    return current.rollout.handle() if current is not None else None
