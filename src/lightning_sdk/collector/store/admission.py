"""Which frames a store takes. Their bytes come from outside: nothing about them is believed."""

from __future__ import annotations

from typing import Final, NamedTuple

from lightning_sdk.errors import WireError
from lightning_sdk.records import Record, checksum, parse_record

# What a store's integer column can hold.
MAX_INT: Final = (1 << 63) - 1
PRODUCER_BYTES: Final = 16
# Ours are 35 characters; a stranger's may be longer, but an index is no place for a document.
MAX_ID_CHARACTERS: Final = 256


def check_producer(producer: bytes) -> None:
    """Refuse what cannot be a producer id.

    Raises:
        WireError: it is not 16 bytes.
    """
    if len(producer) != PRODUCER_BYTES:
        raise WireError(f"a producer id has {PRODUCER_BYTES} bytes, not {len(producer)}")


class Admitted(NamedTuple):
    """A record that may be stored, with what an index needs of it; ids are empty where there is none."""

    record: Record
    # Name of its body in records.proto.
    kind: str
    # The ids by which calls and tokens meet: of the call, and the endpoint's own if it differs.
    call_id: str
    endpoint_call_id: str


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
    call_id = endpoint_call_id = ""
    if kind == "call":
        call_id, endpoint_call_id = record.call.call_id, record.call.endpoint_call_id
    elif kind == "tokens":
        call_id = record.tokens.call_id
    if len(call_id) > MAX_ID_CHARACTERS or len(endpoint_call_id) > MAX_ID_CHARACTERS:
        raise WireError(f"a call id of more than {MAX_ID_CHARACTERS} characters")
    return Admitted(record, kind, call_id, endpoint_call_id)
