"""Which frames a store takes. Their bytes come from outside: nothing about them is believed."""

from __future__ import annotations

from typing import Final, NamedTuple

from lightning_sdk.errors import WireError
from lightning_sdk.ids import MAX_ID_CHARACTERS
from lightning_sdk.mdp.frame import ROLLOUTLESS
from lightning_sdk.mdp.joining import names_only_a_call
from lightning_sdk.mdp.response_ids import response_id
from lightning_sdk.records import Record, checksum, parse_record

# What a store's integer column can hold.
MAX_INT: Final = (1 << 63) - 1
PRODUCER_BYTES: Final = 16
_MAX_SPAN_BYTES: Final = 24


def check_producer(producer: bytes) -> None:
    """Refuse what cannot be a producer id.

    Raises:
        WireError: it is not 16 bytes.
    """
    if len(producer) != PRODUCER_BYTES:
        raise WireError(f"a producer id has {PRODUCER_BYTES} bytes, not {len(producer)}")


class Admitted(NamedTuple):
    """A record that may be stored, with what an index needs of it; empty where there is none."""

    record: Record
    # Name of its body in records.proto.
    kind: str
    # The rollout that it tells of: none where it names none, or is of a kind that tells of none.
    rollout_id: str
    # Its own id, if it is a call or tool call; the call that it tells of, if it is tokens, or a reward that
    # names nothing else.
    call_id: str = ""
    # Of a call: the endpoint's id if it differs, and the id of the response.
    endpoint_call_id: str = ""
    response_id: str = ""
    # Of a call or a span that came over OTLP: trace and span id.
    span: bytes = b""


def admit(data: bytes, expected_checksum: int) -> Admitted:
    """The record in a frame.

    Raises:
        WireError: the bytes do not have this checksum, are no record, or say what no store can hold.
    """
    if checksum(data) != expected_checksum:
        raise WireError(
            f"the checksum of {len(data)} bytes is {checksum(data):08x}, "
            f"not {expected_checksum:08x} as the frame says"
        )
    record = parse_record(data)
    if record.order > MAX_INT or record.start_ns > MAX_INT or record.end_ns > MAX_INT:
        raise WireError("an order or a time is beyond 63 bits")
    if len(record.rollout_id) > MAX_ID_CHARACTERS:
        raise WireError(
            f"a rollout_id of {len(record.rollout_id)} characters, of at most {MAX_ID_CHARACTERS}"
        )
    kind = record.WhichOneof("body") or ""
    rollout_id = "" if kind in ROLLOUTLESS else record.rollout_id
    admitted = Admitted(record, kind, rollout_id)
    if kind == "call":
        call = record.call
        admitted = admitted._replace(
            call_id=_checked(call.call_id),
            endpoint_call_id=_checked(call.endpoint_call_id),
            response_id=response_id(call) or "",
            span=_span(record),
        )
    elif kind == "tokens":
        admitted = admitted._replace(call_id=_checked(record.tokens.call_id))
    elif kind == "otel_span":
        admitted = admitted._replace(span=_span(record))
    elif kind == "tool_call" and len(record.tool_call.tool_call_id) <= MAX_ID_CHARACTERS:
        admitted = admitted._replace(call_id=record.tool_call.tool_call_id)
    elif names_only_a_call(record) and len(record.reward.call_id) <= MAX_ID_CHARACTERS:
        admitted = admitted._replace(call_id=record.reward.call_id)
    return admitted


def _checked(call_id: str) -> str:
    if len(call_id) > MAX_ID_CHARACTERS:
        raise WireError(f"a call id of more than {MAX_ID_CHARACTERS} characters")
    return call_id


def _span(record: Record) -> bytes:
    """Trace and span id; none where no span was active, or they are no ids."""
    span = record.trace_id + record.span_id if record.span_id else b""
    return span if len(span) <= _MAX_SPAN_BYTES else b""
