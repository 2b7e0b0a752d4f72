"""What an agent did, for its own tests: records in memory, without spool, network or collector.

with lightning_sdk.testing.capture() as cap:
    solve("2 + 2")
assert cap.calls[0].agent == "solve"
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lightning_sdk.client import integrations, runtime
from lightning_sdk.client.config import load_config
from lightning_sdk.client.propagation import patches
from lightning_sdk.ids import new_producer
from lightning_sdk.records import Record, SourcedRecord

if TYPE_CHECKING:
    from lightning_sdk.mdp import CallView, Episode, RewardEvent, ScopeSpan, ToolEvent

__all__ = ["Capture", "capture"]

# The thread of the captures that are open, and how many.
_lock = threading.Lock()
_owner: int | None = None
_depth = 0


def _after_fork_in_child() -> None:
    global _lock, _depth
    _lock = threading.Lock()
    if _owner != threading.get_ident():
        # Its thread has stayed in the parent: here nobody leaves it.
        _depth = 0


os.register_at_fork(after_in_child=_after_fork_in_child)


class _Memory:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.records: list[SourcedRecord] = []
        self._producer = new_producer()
        self._clock = itertools.count(1)

    @property
    def id(self) -> bytes:
        return self._producer

    def tick(self) -> int:
        return next(self._clock)

    def write(self, record: Record) -> None:
        self.records.append(SourcedRecord(self._producer, len(self.records) + 1, record))


class Capture:
    """What was recorded so far. Each property reads it anew."""

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory

    @property
    def records(self) -> list[SourcedRecord]:
        """Every record as it was written, in that order."""
        return list(self._memory.records)

    @property
    def calls(self) -> list[CallView]:
        """Model calls in the order in which they were sent, those outside any rollout included."""
        from lightning_sdk.mdp import decode_call

        return [decode_call(sourced) for sourced in self._of("call")]

    @property
    def tools(self) -> list[ToolEvent]:
        """Executions of tools in the order in which they began."""
        from lightning_sdk.mdp import decode_tool

        return [decode_tool(sourced) for sourced in self._of("tool_call")]

    @property
    def scopes(self) -> list[ScopeSpan]:
        """Agent invocations in the order in which they began."""
        from lightning_sdk.mdp import decode_scopes

        return list(decode_scopes(self.records))

    @property
    def rewards(self) -> list[RewardEvent]:
        """Rewards in the order in which they were emitted."""
        from lightning_sdk.mdp import decode_rewards

        return list(decode_rewards(self.records))

    def episodes(self) -> list[Episode]:
        """The rollouts, assembled as a backend would get them."""
        from lightning_sdk.mdp import assemble

        return list(assemble(self.records))

    def _of(self, body: str) -> list[SourcedRecord]:
        found = [sourced for sourced in self.records if sourced.record.WhichOneof("body") == body]
        return sorted(found, key=lambda sourced: sourced.record.order)


@contextmanager
def capture() -> Iterator[Capture]:
    """Record into memory what this process does in the block, with all integrations installed.

    Process-wide: it receives the records of every thread. Captures stack, and the innermost receives. A
    rollout that began in one is written there also when it ends later. Calls outside any rollout are kept
    too, with `rollout_id` None. On leaving, recorder and patches are as they were, or as an `init` or
    `shutdown` inside wants them from then on.

    Raises:
        RuntimeError: another thread has a capture open.
    """
    memory = _Memory()
    _acquire()
    try:
        before, configured = integrations.selected(), runtime.configured()
        carried = patches.installed()
        recording = runtime.Runtime(replace(load_config(), endpoint=""), explicit=True, memory=memory)
        recording.ready.set()
        runtime.push_capture(recording)
        try:
            integrations.select(None)
            patches.install(recording.config.propagate)
            yield Capture(memory)
        finally:
            runtime.pop_capture(recording)
            after = runtime.configured()
            if after is configured or runtime.is_capturing():
                integrations.select(before)
                patches.install(carried)
            else:
                patches.install(after is not None and after.config.propagate)
                integrations.select(after.config.integrations if after is not None else ())
    finally:
        _release()


def _acquire() -> None:
    global _owner, _depth
    with _lock:
        if _depth and _owner != threading.get_ident():
            raise RuntimeError("another thread has a capture() open: it receives the records of all threads")
        _owner = threading.get_ident()
        _depth += 1


def _release() -> None:
    global _depth
    with _lock:
        _depth -= 1
