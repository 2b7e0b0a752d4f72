"""Records and frames for tests of what stores and moves them: a producer that tells of rollouts."""

from __future__ import annotations

import hashlib
from typing import Any

from lightning_sdk._proto.ingest_pb2 import Frame
from lightning_sdk.records import (
    Call,
    Counters,
    Join,
    Leave,
    OtelSpan,
    Outcome,
    Record,
    Reward,
    RolloutEnd,
    RolloutStart,
    ScopeEnd,
    ScopeStart,
    Tokens,
    ToolCall,
    checksum,
)

START_NS = 1_700_000_000_000_000_000


def producer_id(name: str) -> bytes:
    """The same 16 bytes for the same name."""
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def rollout_id(name: str) -> str:
    """The same rollout id for the same name."""
    return "ro_" + hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def to_frame(seq: int, record: Record) -> Frame:
    """The frame of a record."""
    data = record.SerializeToString()
    return Frame(seq=seq, checksum=checksum(data), record=data)


def note_frame(seq: int, text: bytes = b"{}") -> Frame:
    """A frame with the least that is a record: a note of no rollout."""
    record = Record(order=seq, start_ns=START_NS + seq)
    record.note.values = text
    return to_frame(seq, record)


class Telling:
    """Writes what one producer has to say, as numbered frames. Its clock ticks once a record."""

    def __init__(self, producer: str = "p", *, at_ns: int = START_NS) -> None:
        self.producer = producer_id(producer)
        self.frames: list[Frame] = []
        self._at_ns = at_ns

    def record(self, rollout: str = "", *, attempt: int = 1, **body: Any) -> Frame:
        """One more record; `body` names its kind."""
        seq = len(self.frames) + 1
        now_ns = self._at_ns + seq
        record = Record(
            order=seq,
            start_ns=now_ns,
            end_ns=now_ns,
            rollout_id=rollout_id(rollout) if rollout else "",
            attempt=attempt if rollout else 0,
            group_id=f"group of {rollout}" if rollout else "",
            **body,
        )
        frame = to_frame(seq, record)
        self.frames.append(frame)
        return frame

    def start(self, rollout: str, *, attempt: int = 1, project: str = "default", **fields: str) -> None:
        """Join, RolloutStart and the root scope of agent "solver"."""
        self.record(rollout, attempt=attempt, join=Join(pid=1))
        self.record(rollout, attempt=attempt, rollout_start=RolloutStart(project=project, **fields))
        self.record(rollout, attempt=attempt, scope_start=ScopeStart(agent="solver"))

    def call(
        self,
        rollout: str,
        call_id: str,
        *,
        attempt: int = 1,
        endpoint_call_id: str = "",
        outcome: Outcome = Outcome.OUTCOME_OK,
        response: bytes = b"",
        span: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        """A model call, made while the OpenTelemetry span with these ids was active."""
        call = Call(call_id=call_id, endpoint_call_id=endpoint_call_id, outcome=outcome, response=response)
        self.record(rollout, attempt=attempt, call=call, trace_id=span[0], span_id=span[1])

    def tool(self, rollout: str, tool_call_id: str = "") -> None:
        """A tool call."""
        tool_call = ToolCall(tool_call_id=tool_call_id, name="search", outcome=Outcome.OUTCOME_OK)
        self.record(rollout, tool_call=tool_call)

    def reward(self, rollout: str, value: float = 1.0, *, call: str = "") -> None:
        """A reward; with `call` for that one, by its id or that of its response."""
        bound = Reward.BOUND_CALL if call else Reward.BOUND_UNSPECIFIED
        reward = Reward(components=[Reward.Component(value=value)], call_id=call, bound=bound)
        self.record(rollout, reward=reward)

    def tokens(self, call_id: str) -> None:
        """What the endpoint knows of a call."""
        self.record(tokens=Tokens(call_id=call_id, policy="tiny", policy_version=3))

    def counters(self, **values: int) -> None:
        """What the producer has counted so far."""
        self.record(counters=Counters(values=values))

    def otel_span(self, rollout: str, trace_id: bytes, span_id: bytes) -> None:
        """A span as the collector stores it when it comes over OTLP."""
        self.record(rollout, otel_span=OtelSpan(), trace_id=trace_id, span_id=span_id)

    def end(self, rollout: str, *, attempt: int = 1, outcome: Outcome = Outcome.OUTCOME_OK) -> None:
        """The end of root scope and rollout, and Leave with the number of records so far."""
        self.record(rollout, attempt=attempt, scope_end=ScopeEnd(outcome=outcome))
        self.record(rollout, attempt=attempt, rollout_end=RolloutEnd(outcome=outcome))
        self.leave(rollout, attempt=attempt)

    def leave(self, rollout: str, *, attempt: int = 1) -> None:
        """Leave, with the number of records that it has written there."""
        wanted = (rollout_id(rollout), attempt)
        parsed = [Record.FromString(frame.record) for frame in self.frames]
        count = sum((record.rollout_id, record.attempt) == wanted for record in parsed)
        self.record(rollout, attempt=attempt, leave=Leave(count=count + 1))


def whole_rollout(name: str, *, producer: str | None = None, at_ns: int = START_NS, **start: str) -> Telling:
    """A finished rollout with a call, a tool call and a reward, told by a producer of its own: 9 records."""
    telling = Telling(producer or f"producer of {name}", at_ns=at_ns)
    telling.start(name, **start)
    telling.call(name, f"ca_{name}")
    telling.tool(name)
    telling.reward(name)
    telling.end(name)
    return telling
