"""Rollouts of programs that do not use our client: the endpoint writes their records, under ids that they choose.

A rollout begins with `start` or its first call, and ends with `end`, or as lost when nothing is heard of it for
long. Its records are the same as a client's, by the endpoint's own producer, which joins and leaves as any does.
Ids and everything else here are bytes from outside. All methods run in the server's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from lightning_sdk.client.journal import told_error
from lightning_sdk.client.redact import redact
from lightning_sdk.client.rollout import group_of
from lightning_sdk.errors import SpoolError
from lightning_sdk.ids import fitted_id, new_id
from lightning_sdk.policy.errors import ApiError, invalid
from lightning_sdk.policy.recording import RecordWriter
from lightning_sdk.records import Join, Leave, Outcome, Record, Reward, RolloutEnd, RolloutStart

_log = logging.getLogger(__name__)

EndedAs = Literal["succeeded", "failed", "truncated", "cancelled", "lost"]

ROLLOUT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_PROJECT: Final = "default"
# Rollouts that have ended and are remembered, so that calls that come too late are refused.
_REMEMBERED: Final = 4096
# As `client.ends` writes them.
_OUTCOMES: Final[Mapping[EndedAs, Outcome]] = {
    "succeeded": Outcome.OUTCOME_OK,
    "failed": Outcome.OUTCOME_ERROR,
    "truncated": Outcome.OUTCOME_CANCELLED,
    "cancelled": Outcome.OUTCOME_CANCELLED,
    "lost": Outcome.OUTCOME_UNSPECIFIED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a program says of a rollout when it begins."""

    task_id: str | None = None
    split: str | None = None
    group_id: str | None = None
    run_id: str | None = None
    attempt: int = 1
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How it says that a rollout ended. A truncation reason goes with "truncated", and only with that."""

    outcome: EndedAs
    # Type and message.
    error: tuple[str, str] | None = None
    truncation_reason: str | None = None


@dataclass(slots=True, eq=False)
class HarnessRollout:
    """One attempt at a rollout."""

    rollout_id: str
    # None: its first call began it.
    start: Start | None
    group_id: str
    used_at_s: float
    # Records that are written in it, and calls that run.
    written: int = 0
    running: int = 0
    end: End | None = None

    @property
    def attempt(self) -> int:
        """From 1."""
        return 1 if self.start is None else self.start.attempt

    @property
    def split(self) -> str | None:
        """The part of a data set that it belongs to."""
        return None if self.start is None else self.start.split


class Harness:
    """All rollouts of such programs."""

    def __init__(
        self,
        writer: RecordWriter,
        *,
        run_id: str | None = None,
        max_open: int = 1024,
        idle_timeout_s: float = 3600.0,
    ) -> None:
        """Begin without any.

        Args:
            writer: the endpoint's producer.
            run_id: the run of rollouts that name none. Default: a fresh one.
            max_open: rollouts that may be open at once.
            idle_timeout_s: after so long without a call or reward an open one is lost.
        """
        self._writer = writer
        self._run_id = run_id or new_id("run")
        self._max_open = max_open
        self._idle_timeout_s = idle_timeout_s
        self._open: dict[str, HarnessRollout] = {}
        self._ended: OrderedDict[str, HarnessRollout] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        # Records that could not be written.
        self.failures = 0

    @property
    def open_rollouts(self) -> int:
        """How many are open."""
        return len(self._open)

    def tick(self) -> int:
        """The order of something that begins."""
        return self._writer.tick()

    def start(self, rollout_id: str, start: Start) -> HarnessRollout:
        """Begin a rollout, or another attempt at one; a start that is said again changes nothing.

        Raises:
            ApiError: the id cannot be used, the attempt has begun otherwise or is over, a later one has begun, or
                too many are open.
        """
        known = self._known(_checked(rollout_id))
        if known is not None and known.attempt >= start.attempt:
            if known.end is None and known.start == start:
                return self._touched(known)
            raise ApiError(
                409,
                f"attempt {known.attempt} at the rollout {rollout_id} has {_state(known)}: start another attempt "
                "with a higher number, or take another id",
                param="attempt",
                code="rollout_started",
            )
        if known is not None and known.end is None:
            self._finish(known, End(outcome="lost"))
        return self._begin(rollout_id, start)

    def enter(self, rollout_id: str) -> HarnessRollout:
        """The rollout for a call that begins: it is open until `leave`, and begins here where it has not.

        Raises:
            ApiError: the id cannot be used, it has ended, or too many are open.
        """
        rollout = self._known(_checked(rollout_id))
        if rollout is None:
            rollout = self._begin(rollout_id, None)
        elif rollout.end is not None and rollout.end.outcome == "lost":
            # It was only slow. An end that says nothing gives way to another.
            self._admit()
            rollout.end = None
            self._ended.pop(rollout_id, None)
            self._open[rollout_id] = rollout
        elif rollout.end is not None:
            raise ApiError(
                409,
                f"the rollout {rollout_id} has {_state(rollout)}: a call belongs to one that is open",
                code="rollout_ended",
            )
        rollout.running += 1
        return self._touched(rollout)

    def leave(self, rollout: HarnessRollout) -> None:
        """A call is over, and recorded."""
        rollout.running -= 1
        self._touched(rollout)
        self._leave_if_over(rollout)

    def reward(self, rollout_id: str, components: Mapping[str, float], reward_id: str | None) -> str:
        """Reward a rollout: one that is open, has ended, or that somebody else records. The reward's id.

        Raises:
            ApiError: the id cannot be used, or the reward cannot be written.
        """
        rollout = self._known(_checked(rollout_id))
        told = Reward(
            reward_id=fitted_id(reward_id) if reward_id else new_id("rw"),
            components=[Reward.Component(name=name, value=value) for name, value in components.items()],
            # Which call is the last of it is known when it is read.
            bound=Reward.BOUND_ROLLOUT,
        )
        if rollout is None:
            written = self._append(Record(rollout_id=rollout_id, reward=told))
        else:
            self._touched(rollout)
            written = self.write(rollout, Record(reward=told))
        if not written:
            raise _unwritten("reward")
        return told.reward_id

    def end(self, rollout_id: str, end: End) -> HarnessRollout:
        """End a rollout; an end that is said again changes nothing.

        Raises:
            ApiError: there is none of that id here, it has ended otherwise, or the end cannot be written.
        """
        rollout = self._known(_checked(rollout_id))
        if rollout is None:
            raise ApiError(
                404,
                f"there is no rollout {rollout_id} here: it begins with /start or its first call",
                code="rollout_not_found",
            )
        if rollout.end is not None and rollout.end.outcome != "lost":
            if rollout.end == end:
                return rollout
            raise ApiError(
                409, f"the rollout {rollout_id} has {_state(rollout)} already", code="rollout_ended"
            )
        if not self._finish(rollout, end):
            raise _unwritten("end")
        return rollout

    def write(self, rollout: HarnessRollout, record: Record) -> bool:
        """Write one record of a rollout; False where it cannot be written, which is counted."""
        record.rollout_id = rollout.rollout_id
        record.attempt = rollout.attempt
        record.group_id = rollout.group_id
        # Counted before it is written: what cannot be written leaves the rollout incomplete, not quietly shorter.
        rollout.written += 1
        return self._append(record)

    def end_idle(self) -> None:
        """End as lost what nothing was heard of for too long."""
        now_s = time.monotonic()
        for rollout in list(self._open.values()):
            if not rollout.running and now_s - rollout.used_at_s >= self._idle_timeout_s:
                self._finish(rollout, End(outcome="lost"))
        self._timer = None
        self._watch()

    def close(self) -> None:
        """The endpoint ends: what is open is lost, unless somebody else tells its end."""
        if self._timer is not None:
            self._timer.cancel()
        for rollout in list(self._open.values()):
            self._finish(rollout, End(outcome="lost"))

    def _known(self, rollout_id: str) -> HarnessRollout | None:
        return self._open.get(rollout_id) or self._ended.get(rollout_id)

    def _begin(self, rollout_id: str, start: Start | None) -> HarnessRollout:
        self._admit()
        told = start or Start()
        run_id = told.run_id or self._run_id
        group_id = told.group_id or (
            group_of(run_id, told.split, told.task_id, 0) if told.task_id else rollout_id
        )
        rollout = HarnessRollout(rollout_id, start, fitted_id(group_id), time.monotonic())
        self._ended.pop(rollout_id, None)
        self._open[rollout_id] = rollout
        self.write(rollout, Record(join=Join(pid=os.getpid(), host=socket.gethostname())))
        begun = RolloutStart(
            project=_PROJECT,
            run_id=fitted_id(run_id),
            task_id=fitted_id(told.task_id or ""),
            split=fitted_id(told.split or ""),
            metadata=redact(orjson.dumps(told.metadata))[0] if told.metadata else b"",
        )
        self.write(rollout, Record(rollout_start=begun))
        self._watch()
        return rollout

    def _admit(self) -> None:
        if len(self._open) >= self._max_open:
            raise ApiError(
                429,
                f"{len(self._open)} rollouts are open already, which is this endpoint's limit: end some",
                code="too_many_rollouts",
                kind="rate_limit_error",
                headers={"retry-after": "1"},
            )

    def _finish(self, rollout: HarnessRollout, end: End) -> bool:
        told = RolloutEnd(
            outcome=_OUTCOMES[end.outcome],
            error=None if end.error is None else told_error(*end.error),
            truncation_reason=fitted_id(end.truncation_reason or ""),
        )
        if not self.write(rollout, Record(rollout_end=told)) and end.outcome != "lost":
            return False
        rollout.end = end
        if self._open.get(rollout.rollout_id) is rollout:
            del self._open[rollout.rollout_id]
        self._ended[rollout.rollout_id] = rollout
        self._ended.move_to_end(rollout.rollout_id)
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        self._leave_if_over(rollout)
        return True

    def _leave_if_over(self, rollout: HarnessRollout) -> None:
        if rollout.end is not None and not rollout.running:
            self.write(rollout, Record(leave=Leave(count=rollout.written + 1)))

    def _touched(self, rollout: HarnessRollout) -> HarnessRollout:
        rollout.used_at_s = time.monotonic()
        return rollout

    def _watch(self) -> None:
        """See that `end_idle` is called when the first of the open ones may be idle."""
        if self._timer is None and self._open:
            first_s = min(rollout.used_at_s for rollout in self._open.values()) + self._idle_timeout_s
            # One whose call runs is looked at again, but not all the time.
            delay_s = max(first_s - time.monotonic(), self._idle_timeout_s / 10)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.end_idle)

    def _append(self, record: Record) -> bool:
        record.order = record.order or self._writer.tick()
        record.start_ns = record.start_ns or time.time_ns()
        record.end_ns = record.end_ns or record.start_ns
        try:
            self._writer.write(record)
        except SpoolError as error:
            self.failures += 1
            if self.failures == 1:
                _log.error("records of rollouts are not written (said once, counted in /health): %s", error)
            return False
        return True


def _checked(rollout_id: str) -> str:
    if not ROLLOUT_ID.fullmatch(rollout_id):
        raise invalid(
            f"{rollout_id[:80]!r} is no rollout id: 1 to 128 of A-Z a-z 0-9 _ . : - are, the first a letter or digit",
            code="invalid_rollout_id",
        )
    return rollout_id


def _state(rollout: HarnessRollout) -> str:
    if rollout.end is not None:
        return f"ended ({rollout.end.outcome})"
    return "begun with its first call" if rollout.start is None else "begun"


def _unwritten(what: str) -> ApiError:
    return ApiError(
        503,
        f"the {what} could not be written (the endpoint's log says why): send it again",
        code="not_recorded",
        kind="server_error",
        headers={"retry-after": "1"},
    )
