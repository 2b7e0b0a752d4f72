"""Where the agent's code is: the rollout and the scope of the present context, held by value in context
variables.

Nothing here writes a record. A scope is entered and left by value, never by token: code that is resumed in
another context than it started in (a generator, a callback) then neither fails nor disturbs what it finds
there.
"""

from __future__ import annotations

import os
import sys
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from lightning_sdk.client.journal import Membership
    from lightning_sdk.client.runtime import Runtime, Sink


@dataclass(frozen=True, slots=True)
class CallHandle:
    """A model call that has finished, for `emit_reward(call=…)`. Plain data: it may cross processes."""

    call_id: str
    rollout_id: str = ""
    attempt: int = 0
    group_id: str = ""
    scope_id: str = ""


@dataclass(frozen=True, slots=True)
class RolloutHandle:
    """The rollout in which the present code runs."""

    rollout_id: str
    attempt: int
    group_id: str
    run_id: str
    task_id: str | None
    split: str | None


class Rollout:
    """One execution of the agent on a task, as this process knows it."""

    __slots__ = (
        "__weakref__",
        "attempt",
        "ended",
        "group_id",
        "membership",
        "memberships",
        "open_scopes",
        "origin",
        "parent",
        "pid",
        "rollout_id",
        "run_id",
        "split",
        "task_id",
        "truncation_reason",
    )

    def __init__(
        self,
        origin: Runtime | None,
        *,
        rollout_id: str,
        attempt: int,
        group_id: str,
        run_id: str,
        task_id: str | None,
        split: str | None,
        parent: tuple[bytes, int] | None = None,
    ) -> None:
        # The runtime in which it began: a rollout that began in a capture() is never written elsewhere. None:
        # it began in another process.
        self.origin = origin
        # Who wrote there last in that process, and the order of that.
        self.parent = parent
        self.rollout_id = rollout_id
        self.attempt = attempt
        self.group_id = group_id
        self.run_id = run_id
        self.task_id = task_id
        self.split = split
        # The process that will write its end (0: one that began it elsewhere), whether it has, and what is known by
        # then to have cut it off.
        self.pid = os.getpid() if origin is not None else 0
        self.ended = False
        self.truncation_reason = ""
        # This process's part in it, which belongs to journal.py and changes only under its lock: the
        # membership that wrote last, that of each sink, and how many scopes are open.
        self.membership: Membership | None = None
        self.memberships: dict[Sink, Membership] = {}
        self.open_scopes = 0
        _rollouts[rollout_id, attempt] = self

    def handle(self) -> RolloutHandle:
        """What a user may know of it."""
        return RolloutHandle(
            self.rollout_id, self.attempt, self.group_id, self.run_id, self.task_id, self.split
        )


# Each attempt that is known here, as long as anything refers to it.
_rollouts: WeakValueDictionary[tuple[str, int], Rollout] = WeakValueDictionary()


def known_rollout(rollout_id: str, attempt: int) -> Rollout | None:
    """The rollout of that id, if this process has to do with it."""
    return _rollouts.get((rollout_id, attempt))


class Scope:
    """One agent invocation, or (scope_id and agent "") the top of a rollout. Only `last_call` changes."""

    __slots__ = ("agent", "last_call", "parent", "rollout", "scope_id")

    def __init__(
        self, rollout: Rollout, *, scope_id: str = "", agent: str = "", parent: Scope | None = None
    ) -> None:
        self.rollout = rollout
        self.scope_id = scope_id
        self.agent = agent
        self.parent = parent
        # The latest finished call here or in a descendant.
        self.last_call: CallHandle | None = None

    def call_finished(self, call_id: str) -> None:
        """A call that was made here is over: it is now the latest of this scope and of all around it."""
        rollout = self.rollout
        handle = CallHandle(call_id, rollout.rollout_id, rollout.attempt, rollout.group_id, self.scope_id)
        scope: Scope | None = self
        while scope is not None:
            scope.last_call = handle
            scope = scope.parent


_current: ContextVar[Scope | None] = ContextVar("lightning_scope", default=None)
# The top of the rollout that ended last in this context, so that `emit_reward(score(solve(task)))` finds it.
_ended: ContextVar[Scope | None] = ContextVar("lightning_ended_rollout", default=None)


# The rollout that ended last in this process, and the thread in which it did.
_latest_end: tuple[str, threading.Thread] | None = None

# For code that puts back what was current after an interruption: of the language's core, so that no signal
# handler can run before they have done what they do.
get_current = _current.get
set_current = _current.set


def current() -> Scope | None:
    """The innermost scope of this context; None outside any rollout."""
    return _current.get()


def current_or_ended() -> tuple[Scope | None, bool]:
    """The innermost scope, else the top of the rollout that ended last in this context (and then True)."""
    scope = _current.get()
    return (scope, False) if scope is not None else (_ended.get(), True)


def enter(scope: Scope | None) -> Scope | None:
    """Make `scope` the current one; returns the one before, which `leave` takes back."""
    before = _current.get()
    _current.set(scope)
    return before


def leave(scope: Scope | None, before: Scope | None) -> None:
    """Make `before` current again. Where another than `scope` is current (a foreign context), it stays."""
    if _current.get() is scope:
        _current.set(before)


def remember_ended(top: Scope) -> None:
    """The rollout of `top` has ended in this context."""
    global _latest_end
    _ended.set(top)
    _latest_end = (top.rollout.rollout_id, threading.current_thread())


def ended_elsewhere_since() -> bool:
    """Whether a rollout that this code may well mean has ended later than the last one of this context.

    That is one of this thread, while no event loop runs here (`asyncio.run` has another context), or one of a
    thread that is over by now, for the main thread. Tasks and threads that go on each look after their own.
    """
    mine, latest = _ended.get(), _latest_end
    if mine is None or latest is None or latest[0] == mine.rollout.rollout_id:
        return False
    here, there = threading.current_thread(), latest[1]
    if there is here:
        asyncio = sys.modules.get("asyncio")
        return asyncio is None or asyncio._get_running_loop() is None
    return here is threading.main_thread() and not there.is_alive()
