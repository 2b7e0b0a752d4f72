"""The record types, under the names that the rest of the package uses, and what turns bytes into them and back.

The messages are those of proto/lightning/v1/records.proto; their comments say what each field means.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from google.protobuf.message import DecodeError

from lightning_sdk._proto.records_pb2 import (
    Call,
    ChoiceTokens,
    Counters,
    Error,
    Join,
    Leave,
    Note,
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
)
from lightning_sdk.errors import WireError

__all__ = [
    "OUTCOMES",
    "OUTCOME_NAMES",
    "Call",
    "ChoiceTokens",
    "Counters",
    "Error",
    "Join",
    "Leave",
    "Note",
    "OtelSpan",
    "Outcome",
    "OutcomeName",
    "Record",
    "Reward",
    "RolloutEnd",
    "RolloutStart",
    "ScopeEnd",
    "ScopeStart",
    "SourcedRecord",
    "Tokens",
    "ToolCall",
    "checksum",
    "pack_float32",
    "pack_int32",
    "parse_record",
    "unpack_float32",
    "unpack_int32",
]

OutcomeName = Literal["ok", "error", "cancelled", "closed_early", "abandoned"]

OUTCOMES: Final[dict[OutcomeName, Outcome]] = {
    "ok": Outcome.OUTCOME_OK,
    "error": Outcome.OUTCOME_ERROR,
    "cancelled": Outcome.OUTCOME_CANCELLED,
    "closed_early": Outcome.OUTCOME_CLOSED_EARLY,
    "abandoned": Outcome.OUTCOME_ABANDONED,
}
OUTCOME_NAMES: Final[dict[int, OutcomeName]] = {value: name for name, value in OUTCOMES.items()}


@dataclass(frozen=True, slots=True)
class SourcedRecord:
    """A record with its place: which producer wrote it, as its how-manieth (from 1)."""

    producer: bytes
    seq: int
    record: Record


def parse_record(data: bytes) -> Record:
    """Parse a serialized record.

    Raises:
        WireError: not a record, or a record that says nothing.
    """
    try:
        record = Record.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are not a lightning.v1.Record: {error}") from None
    if record.WhichOneof("body") is None:
        raise WireError("a lightning.v1.Record without a body (written by a newer version?)")
    return record


def checksum(data: bytes) -> int:
    """CRC-32 (zlib) of a serialized record, as in spool frames and `Frame.checksum`."""
    return zlib.crc32(data)


def pack_int32(values: Iterable[int]) -> bytes:
    """Token ids to little-endian int32.

    Raises:
        OverflowError: a value outside int32.
    """
    return _little_endian(array("i", values)).tobytes()


def unpack_int32(data: bytes) -> array[int]:
    """Little-endian int32 to ``array('i')``.

    Raises:
        WireError: a length that is no multiple of 4.
    """
    return _unpack("i", data)


def pack_float32(values: Iterable[float]) -> bytes:
    """Log probabilities to little-endian float32."""
    return _little_endian(array("f", values)).tobytes()


def unpack_float32(data: bytes) -> array[float]:
    """Little-endian float32 to ``array('f')``.

    Raises:
        WireError: a length that is no multiple of 4.
    """
    return _unpack("f", data)


def _unpack(code: Literal["i", "f"], data: bytes) -> array:  # type: ignore[type-arg]
    if len(data) % 4:
        raise WireError(f"{len(data)} bytes are no whole number of 4-byte values")
    values = array(code)
    values.frombytes(data)
    return _little_endian(values)


def _little_endian(values: array) -> array:  # type: ignore[type-arg]
    if sys.byteorder == "big":
        values.byteswap()
    return values
