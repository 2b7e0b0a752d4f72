"""Spool segments for tests, written byte by byte as docs/architecture.md defines them."""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightning_sdk._proto.ingest_pb2 import Frame
from lightning_sdk._proto.spool_pb2 import SegmentHeader


def file_frame(payload: bytes) -> bytes:
    """A frame of the file: length, checksum, payload."""
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def segment_bytes(producer: bytes, frames: Sequence[Frame], *, destination: str = "") -> bytes:
    """A whole segment, whose first record is the first of `frames`."""
    first_seq = frames[0].seq if frames else 1
    header = SegmentHeader(producer=producer, first_seq=first_seq, destination=destination, pid=1)
    payloads = [header.SerializeToString(), *(frame.record for frame in frames)]
    return b"LSPOOL1\n" + b"".join(file_frame(payload) for payload in payloads)


def write_segment(spool: Path, producer: bytes, frames: Sequence[Frame], *, destination: str = "") -> Path:
    """The segment of a dead owner."""
    spool.mkdir(parents=True, exist_ok=True)
    path = spool / f"{producer.hex()}-{frames[0].seq:012d}.seg"
    path.write_bytes(segment_bytes(producer, frames, destination=destination))
    return path


@contextmanager
def living_owner(path: Path) -> Iterator[int]:
    """Hold the segment's lock as its owner does. Yields a descriptor that appends."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
