"""Writes records into rollouts, and keeps what a producer owes each rollout: join first, count, leave last.

All writing happens under one lock, so that a count is true when it is written. A garbage collection inside
the locked lines may finish a generator, whose end is then written too: a thread that holds the lock puts such
work off until it has let go, instead of waiting for itself.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lightning_sdk.client import faults
from lightning_sdk.client.jsonable import name_of, object_to_json
from lightning_sdk.client.otel import NO_SPAN, SpanIds
from lightning_sdk.client.redact import redact, redact_text
from lightning_sdk.client.runtime import Runtime, Sink, active_for
from lightning_sdk.client.scope import Rollout, Scope
from lightning_sdk.ids import fitted
from lightning_sdk.records import (
    OUTCOMES,
    Counters,
    Error,
    Join,
    Leave,
    OutcomeName,
    Record,
    RolloutEnd,
    RolloutStart,
    ScopeEnd,
    ScopeStart,
)

_MAX_ERROR_CHARS = 4000


class Membership:
    """The part of one producer in one rollout. Changes only under the lock."""

    __slots__ = ("count", "last_order", "left", "pid", "producer", "runtime", "sink")

    def __init__(self, runtime: Runtime, sink: Sink) -> None:
        self.runtime = runtime
        self.sink = sink
        self.producer = sink.id
        self.pid = os.getpid()
        self.count = 0
        self.last_order = 0
        self.left = False

    def is_of(self, sink: Sink) -> bool:
        """Whether it is still that of `sink`: a fork gives the sink another id."""
        return self.sink is sink and self.producer == sink.id


class Moment(NamedTuple):
    """When something began: clock, causal order (0: not ticked yet) and the producer whose order it is."""

    time_ns: int
    producer: bytes
    order: int
    span: SpanIds


NEVER = Moment(0, b"", 0, NO_SPAN)


class _Gate(threading.local):
    def __init__(self) -> None:
        self.busy = False
        self.put_off: deque[Callable[[], object]] = deque()


_lock = threading.Lock()
_gate = _Gate()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _exclusively(action: Callable[[], object]) -> None:
    """Run `action` under the lock: now, or as soon as this thread has let go of it."""
    gate = _gate
    put_off = gate.put_off
    put_off.append(action)
    if gate.busy:
        return
    # Twice a loop: what a collection adds between the last look and `busy = False` is seen here, and what
    # it adds after that is carried out there and then.
    while put_off:
        gate.busy = True
        try:
            while put_off:
                # The guard is outside: it logs, and whoever handles the log may wait for a thread that waits
                # for the lock.
                with faults.guard("journal"), _lock:
                    put_off.popleft()()
        finally:
            gate.busy = False


def ticked(runtime: Runtime, span: SpanIds = NO_SPAN) -> Moment:
    """Now, with a tick of `runtime`'s causal clock."""
    now_ns = time.time_ns()
    if runtime.made_sink is None and not runtime.closed:
        # Made under the lock. What a collection calls in the middle of that gets its order when it writes.
        _exclusively(runtime.sink)
    sink = runtime.made_sink
    if sink is None or runtime.closed:
        return Moment(now_ns, b"", 0, span)
    return Moment(now_ns, sink.id, sink.tick(), span)


def unticked(span: SpanIds = NO_SPAN) -> Moment:
    """Now; its order is taken when its record is written."""
    return Moment(time.time_ns(), b"", 0, span)


def append(scope: Scope, began: Moment, record: Record, scope_id: str | None = None) -> None:
    """Write one record of something that happened in `scope`, whose rollout is joined first where it was not.

    Args:
        scope: where it happened.
        began: when; its order is kept if it is of the producer that writes.
        record: has its body, and `end_ns` where the thing has a duration; the rest is set here.
        scope_id: the scope that the record names, if not that of `scope`.
    """
    rollout = scope.rollout
    named = scope.scope_id if scope_id is None else scope_id

    def write() -> None:
        membership = _member(rollout)
        if membership is not None:
            _write(membership, rollout, named, began, record)
            _leave_if_last(rollout, membership)

    _exclusively(write)


def append_outside(runtime: Runtime, began: Moment, record: Record) -> None:
    """Write one record that is about no scope of ours; it may name a rollout, even one that is open here."""

    def write() -> None:
        if runtime.closed:
            faults.count("records_after_shutdown")
            return
        sink = runtime.sink()
        _stamp(record, sink, began)
        for rollout, membership in runtime.joined.items():
            if (rollout.rollout_id, rollout.attempt) == (record.rollout_id, record.attempt):
                membership.count += 1
        sink.write(record)

    _exclusively(write)


def start_rollout(rollout: Rollout, metadata: Mapping[str, Any], span: SpanIds) -> None:
    """Write the rollout's start. Until `end_rollout` its top counts as an open scope here."""
    began = unticked(span)
    config = active_for(rollout).config
    start = RolloutStart(
        project=config.project,
        run_id=rollout.run_id,
        task_id=rollout.task_id or "",
        split=rollout.split or "",
        metadata=redact(object_to_json(metadata), config.redact)[0] if metadata else b"",
    )
    _open(rollout, "", began, Record(rollout_start=start))


def end_rollout(top: Scope, outcome: OutcomeName, error: BaseException | None) -> None:
    """Write the rollout's end, and leave it if no scope is open here."""
    rollout = top.rollout
    # How a consumer gave up a generator is told by its scope; the rollout was simply not finished.
    ended: OutcomeName = "cancelled" if outcome in ("closed_early", "abandoned") else outcome
    end = RolloutEnd(
        outcome=OUTCOMES[ended],
        error=error_of(active_for(rollout), error),
        truncation_reason=rollout.truncation_reason,
    )
    rollout.ended = True
    _close(rollout, "", NO_SPAN, Record(rollout_end=end))


def start_scope(scope: Scope, span: SpanIds) -> None:
    """Write the start of an agent invocation."""
    began = unticked(span)
    rollout, parent = scope.rollout, scope.parent
    start = ScopeStart(agent=scope.agent, parent_scope_id=parent.scope_id if parent is not None else "")
    _open(rollout, scope.scope_id, began, Record(scope_start=start))


def end_scope(scope: Scope, outcome: OutcomeName, error: BaseException | None, span: SpanIds) -> None:
    """Write the end of an agent invocation, and leave the rollout if it was the last open scope here."""
    rollout = scope.rollout
    end = ScopeEnd(outcome=OUTCOMES[outcome], error=error_of(active_for(rollout), error))
    _close(rollout, scope.scope_id, span, Record(scope_end=end))


def close(runtime: Runtime, *, replaced: bool = False) -> None:
    """Write the last of `runtime`: its counters, after which nothing more is taken.

    Args:
        runtime: what is closed.
        replaced: it also leaves every rollout in which scopes are open; they go on in another runtime.
    """

    def write() -> None:
        if runtime.closed:
            return
        try:
            for rollout, membership in list(runtime.joined.items()) if replaced else ():
                if membership.is_of(runtime.sink()) and not membership.left:
                    _leave(rollout, membership)
            runtime.joined.clear()
            _write_counters(runtime)
        finally:
            runtime.closed = True

    _exclusively(write)


def error_of(runtime: Runtime, error: BaseException | None) -> Error | None:
    """An exception as it may be written: qualified type, and message without secrets."""
    if error is None or isinstance(error, GeneratorExit):
        return None
    try:
        message = str.__str__(str(error))
    except BaseException as raised:
        faults.pass_on_unless_raised(raised)
        message = ""
    return told_error(_qualified_name(type(error)), message, runtime.config.redact)


def told_error(kind: str, message: str, hook: Callable[[bytes], bytes] | None = None) -> Error:
    """An error of which only type and message are known, as it may be written."""
    return Error(type=fitted(kind), message=redact_text(message[:_MAX_ERROR_CHARS], hook))


def _qualified_name(kind: type) -> str:
    try:
        module, name = kind.__module__, kind.__qualname__
        return fitted(name if module == "builtins" else f"{module}.{name}")
    except BaseException as raised:  # a metaclass may say anything
        faults.pass_on_unless_raised(raised)
        return fitted(name_of(kind))


def _open(rollout: Rollout, scope_id: str, began: Moment, record: Record) -> None:
    def write() -> None:
        # Joined first: in a forked child that forgets the scopes which are open in its parent.
        membership = _member(rollout)
        rollout.open_scopes += 1
        if membership is not None:
            membership.left = False
            membership.runtime.joined[rollout] = membership
            _write(membership, rollout, scope_id, began, record)

    _exclusively(write)


def _close(rollout: Rollout, scope_id: str, span: SpanIds, record: Record) -> None:
    began = unticked(span)

    def write() -> None:
        membership = _member(rollout)
        rollout.open_scopes = max(0, rollout.open_scopes - 1)
        if membership is not None:
            _write(membership, rollout, scope_id, began, record)
            _leave_if_last(rollout, membership)

    _exclusively(write)


def _member(rollout: Rollout) -> Membership | None:
    """Our membership in `rollout`, joined now if there is none. None: it no longer records."""
    runtime = active_for(rollout)
    if runtime.closed:
        faults.count("records_after_shutdown")
        return None
    sink = runtime.sink()
    before = rollout.membership
    if before is not None and before.is_of(sink):
        return before
    # A capture() that is opened or left inside a rollout changes the sink, and back.
    earlier = rollout.memberships.get(sink)
    if earlier is not None and earlier.is_of(sink):
        rollout.membership = earlier
        return earlier
    membership = Membership(runtime, sink)
    join = Join(pid=membership.pid, host=socket.gethostname())
    if before is not None:
        join.parent_producer = before.producer
        join.parent_order = before.last_order
        if before.pid != membership.pid:
            rollout.open_scopes = 0
    elif rollout.parent is not None:
        join.parent_producer, join.parent_order = rollout.parent
    rollout.membership = rollout.memberships[sink] = membership
    _write(membership, rollout, "", unticked(), Record(join=join))
    return membership


def _write(membership: Membership, rollout: Rollout, scope_id: str, began: Moment, record: Record) -> None:
    sink = membership.sink
    record.rollout_id = rollout.rollout_id
    record.attempt = rollout.attempt
    record.group_id = rollout.group_id
    record.scope_id = scope_id
    _stamp(record, sink, began)
    # Counted before it is written: what cannot be written leaves the rollout incomplete, not quietly shorter.
    membership.count += 1
    sink.write(record)
    membership.last_order = max(membership.last_order, record.order)


def _stamp(record: Record, sink: Sink, began: Moment) -> None:
    # A call that began before a fork or a new init has an order of another producer's clock.
    record.order = began.order if began.order and began.producer == sink.id else sink.tick()
    record.start_ns = began.time_ns
    if not record.end_ns:
        record.end_ns = began.time_ns
    if began.span is not NO_SPAN:
        record.trace_id, record.span_id = began.span


def _leave_if_last(rollout: Rollout, membership: Membership) -> None:
    if rollout.open_scopes == 0 and not membership.left:
        _leave(rollout, membership)


def _leave(rollout: Rollout, membership: Membership) -> None:
    leave = Leave(count=membership.count + 1)
    _write(membership, rollout, "", unticked(), Record(leave=leave))
    membership.left = True
    membership.runtime.joined.pop(rollout, None)
    _write_counters(membership.runtime)


def _write_counters(runtime: Runtime) -> None:
    """Write what this producer has counted, if it has changed since that was written."""
    if runtime.captured:
        return
    values = runtime.take_counters()
    if values != runtime.written_counters:
        now_ns = time.time_ns()
        runtime.sink().write(Record(start_ns=now_ns, end_ns=now_ns, counters=Counters(values=values)))
        runtime.written_counters = values
