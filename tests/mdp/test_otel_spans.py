"""OpenTelemetry spans of chat calls become calls of text fidelity."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from lightning_sdk.mdp import Episode, assemble
from support.record_factory import Tape

TRACE, SPAN = b"t" * 16, b"s" * 8


def resource_spans(error: str = "", **attributes: Any) -> bytes:
    resource = ResourceSpans()
    span = resource.scope_spans.add().spans.add(trace_id=TRACE, span_id=SPAN, name="chat")
    for name, value in attributes.items():
        pair = span.attributes.add(key=name.replace("__", "."))
        if isinstance(value, int):
            pair.value.int_value = value
        elif isinstance(value, float):
            pair.value.double_value = value
        else:
            pair.value.string_value = value if isinstance(value, str) else json.dumps(value)
    if error:
        span.status.code = 2
        span.status.message = error
    return resource.SerializeToString()


CHAT: dict[str, Any] = {
    "gen_ai__operation__name": "chat",
    "gen_ai__request__model": "tiny",
    "gen_ai__response__model": "tiny-1",
    "gen_ai__response__id": "re_1",
    "gen_ai__request__temperature": 0.5,
    "gen_ai__usage__input_tokens": 3,
    "gen_ai__usage__output_tokens": 2,
    "gen_ai__input__messages": [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {"role": "user", "parts": [{"type": "text", "content": "2+2?"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c", "name": "add", "arguments": {"x": 2}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "4"}]},
    ],
    "gen_ai__output__messages": [
        {"role": "assistant", "parts": [{"type": "text", "content": "4"}], "finish_reason": "stop"}
    ],
}


def assembled(*spans: bytes, tape: Tape | None = None) -> Episode:
    tape = tape or Tape()
    for span in spans:
        tape.write(trace_id=TRACE, span_id=SPAN, otel_span={"resource_spans": span})
    (episode,) = assemble(tape.records)
    return episode


def test_a_chat_span_is_a_call_of_text_fidelity() -> None:
    (transition,) = assembled(resource_spans(**CHAT)).transitions
    assert (transition.fidelity, transition.drop_reason, transition.model) == (
        "text",
        "no_token_ids",
        "tiny-1",
    )
    assert transition.observation["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"x": 2}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]
    assert transition.action == {"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}
    assert transition.sampling["requested"] == {"temperature": 0.5}
    assert transition.call_id == f"otel_{SPAN.hex()}"


def test_a_failed_chat_span_is_a_failed_call() -> None:
    (transition,) = assembled(resource_spans("slow down", **CHAT)).transitions
    assert transition.drop_reason == "error"


def test_a_span_of_something_else_is_no_call() -> None:
    assert assembled(resource_spans(gen_ai__operation__name="execute_tool")).transitions == []


def test_a_span_of_a_call_that_we_recorded_is_counted_and_left_out() -> None:
    tape = Tape()
    record = tape.call("a")
    record.trace_id, record.span_id = TRACE, SPAN
    episode = assembled(resource_spans(**CHAT), tape=tape)
    assert [each.call_id for each in episode.transitions] == ["a"]
    assert episode.calls_without_transition == {"duplicate_span": 1}


def test_the_call_may_be_in_another_rollout_than_its_span() -> None:
    tape, exported = Tape(rollout="ro_ours"), Tape("otlp", rollout="ro_trace")
    record = tape.call("a")
    record.trace_id, record.span_id = TRACE, SPAN
    exported.write(trace_id=TRACE, span_id=SPAN, otel_span={"resource_spans": resource_spans(**CHAT)})
    for records in (tape.records + exported.records, exported.records + tape.records):
        (episode,) = assemble(records)
        assert (episode.rollout_id, [each.call_id for each in episode.transitions]) == ("ro_ours", ["a"])
        assert episode.calls_without_transition == {"duplicate_span": 1}


@pytest.mark.parametrize(
    "span",
    [
        b"\xff\xff\xff",
        b"",
        resource_spans(**{**CHAT, "gen_ai__input__messages": "not json"}),
        resource_spans(**{**CHAT, "gen_ai__input__messages": "[1]"}),
        resource_spans(**{**CHAT, "gen_ai__output__messages": "{}"}),
        resource_spans(**{**CHAT, "gen_ai__request__temperature": float("nan")}),
        resource_spans(gen_ai__operation__name="chat"),
    ],
)
def test_a_span_that_cannot_be_read_is_kept_as_unreadable(span: bytes) -> None:
    (transition,) = assembled(span).transitions
    assert transition.drop_reason == "unreadable"


def test_without_the_opentelemetry_protocol_spans_are_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.trace.v1.trace_pb2", None)
    (transition,) = assembled(resource_spans(**CHAT)).transitions
    assert transition.drop_reason == "unreadable"
