"""OpenTelemetry spans of chat calls (the gen_ai conventions) to call records, at text fidelity."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.json_text import parse_json
from lightning_sdk.records import Call, Outcome, Record, SourcedRecord

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

# Attribute of a span -> field of a chat request.
_REQUEST_FIELDS: Final = {
    "gen_ai.request.model": "model",
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.choice.count": "n",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
}
_STATUS_ERROR: Final = 2
# What the ids of calls begin with that are known by a span only.
OTEL_CALL: Final = "otel_"


def call_of_span(item: SourcedRecord) -> SourcedRecord | None:
    """The call that a span tells of, as if our client had recorded it.

    Returns:
        None where the span is no chat call. A span that cannot be read becomes a call of the API "otel",
        which nobody can read either, so that it is kept and counted.
    """
    try:
        span = _read_span(item.record.otel_span.resource_spans)
    except WireError:
        unreadable = Call(api="otel", outcome=Outcome.OUTCOME_OK)
        return _with_call(item, item.record.trace_id, item.record.span_id, unreadable)
    attributes = _attributes(span)
    if attributes.get("gen_ai.operation.name") != "chat":
        return None
    failed = span.status.code == _STATUS_ERROR
    call = Call(
        integration="otel",
        api="chat.completions",
        agent=_text(attributes.get("gen_ai.agent.name")),
        attempts=1,
        outcome=Outcome.OUTCOME_ERROR if failed else Outcome.OUTCOME_OK,
    )
    if failed:
        call.error.type = _text(attributes.get("error.type")) or "error"
        call.error.message = span.status.message
    try:
        call.request = _to_bytes(_request(attributes))
        call.response = _to_bytes(_response(attributes))
    except WireError:
        call.request = call.response = b""
    return _with_call(item, span.trace_id, span.span_id, call)


def _with_call(item: SourcedRecord, trace_id: bytes, span_id: bytes, call: Call) -> SourcedRecord:
    record = Record()
    record.CopyFrom(item.record)
    record.trace_id, record.span_id = trace_id, span_id
    call.call_id = OTEL_CALL + (span_id.hex() if span_id else f"{item.producer.hex()}_{item.seq}")
    record.call.CopyFrom(call)
    return SourcedRecord(item.producer, item.seq, record)


def _read_span(data: bytes) -> Span:
    try:
        # Comes with [server]; a base install has no collector that could have received a span.
        from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
    except ImportError:
        raise WireError("reading OpenTelemetry spans needs opentelemetry-proto") from None
    try:
        resource = ResourceSpans.FromString(data)
    except DecodeError:
        raise WireError(f"{len(data)} bytes are not an OpenTelemetry span") from None
    for scope in resource.scope_spans:
        for span in scope.spans:
            return span
    raise WireError("an OpenTelemetry record without a span")


def _attributes(span: Span) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            values[pair.key] = getattr(pair.value, kind)
    return values


def _request(attributes: dict[str, Any]) -> dict[str, Any]:
    request = {field: attributes[name] for name, field in _REQUEST_FIELDS.items() if name in attributes}
    request["messages"] = [
        message for told in _messages(attributes, "gen_ai.input.messages") for message in _to_chat(told)
    ]
    if "gen_ai.tool.definitions" in attributes:
        request["tools"] = parse_json(_text(attributes["gen_ai.tool.definitions"]).encode())
    return request


def _response(attributes: dict[str, Any]) -> dict[str, Any]:
    choices = []
    for index, told in enumerate(_messages(attributes, "gen_ai.output.messages")):
        message = next(iter(_to_chat(told)), {"role": "assistant", "content": None})
        choices.append({"index": index, "message": message, "finish_reason": told.get("finish_reason")})
    return {
        "id": attributes.get("gen_ai.response.id"),
        "model": attributes.get("gen_ai.response.model"),
        "choices": choices,
        "usage": {
            "prompt_tokens": attributes.get("gen_ai.usage.input_tokens"),
            "completion_tokens": attributes.get("gen_ai.usage.output_tokens"),
        },
    }


def _messages(attributes: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = parse_json(_text(attributes.get(name)).encode())
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise WireError(f"{name} is not a JSON list of messages")
    return value


def _to_chat(told: dict[str, Any]) -> list[dict[str, Any]]:
    """A message of the conventions (a role and parts) as chat messages, each tool result as its own."""
    if not isinstance(told.get("parts"), list):
        return [{key: value for key, value in told.items() if key != "finish_reason"}]
    parts = [part for part in told["parts"] if isinstance(part, dict)]
    results = [
        {
            "role": "tool",
            "tool_call_id": part.get("id"),
            "content": _as_text(part.get("response", part.get("result"))),
        }
        for part in parts
        if part.get("type") == "tool_call_response"
    ]
    texts = [_as_text(part.get("content")) for part in parts if part.get("type") == "text"]
    thoughts = [_as_text(part.get("content")) for part in parts if part.get("type") == "reasoning"]
    tool_calls = [
        {
            "id": part.get("id"),
            "type": "function",
            "function": {"name": part.get("name"), "arguments": _as_text(part.get("arguments"))},
        }
        for part in parts
        if part.get("type") == "tool_call"
    ]
    if results and not texts and not tool_calls:
        return results
    message: dict[str, Any] = {"role": told.get("role"), "content": "".join(texts) if texts else None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if tool_calls:
        message["tool_calls"] = tool_calls
    return [message, *results]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _to_bytes(value: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False).encode()
    except ValueError:
        raise WireError("an OpenTelemetry span holds a number that is not finite") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
