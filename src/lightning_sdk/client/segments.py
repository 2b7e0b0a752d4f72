"""The spool's file format: frames, the reader of a segment, and the lock that tells whether its owner lives.

docs/architecture.md ("The spool") defines the format. What is read here may have been cut short by a crash
or damaged on disk: every length is checked before it is believed, and no more is held than one record and
one window.
"""

from __future__ import annotations

import fcntl
import io
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from lightning_sdk._proto.spool_pb2 import SegmentHeader
from lightning_sdk.client.forks import OwnedFile
from lightning_sdk.errors import SpoolError

MAGIC: Final = b"LSPOOL1\n"
# The largest message that a collector must accept, and the largest record that fits one with all around it.
MAX_MESSAGE_BYTES: Final = 64 << 20
MAX_RECORD_BYTES: Final = MAX_MESSAGE_BYTES - 1024

_PREFIX: Final = struct.Struct("<II")
_SUFFIX: Final = ".seg"
# What a segment's name gets behind it when its end cannot be read: it is no segment any more, but kept.
DAMAGED_SUFFIX: Final = ".damaged"
_MAX_HEADER_BYTES: Final = 1 << 16
_MAX_SEQ: Final = 1 << 62
_WINDOW_BYTES: Final = 1 << 20
# What a frame costs in memory beside its record: many tiny ones must not add up.
_FRAME_COST_BYTES: Final = 128
# How many damaged frames in a row are walked over in search of a whole one.
_MAX_DAMAGED_RUN: Final = 64


@dataclass(frozen=True, slots=True)
class RawFrame:
    """One record of a segment, not parsed, under its number.

    `lost_reason` tells that the record is damaged: then `record` is empty and `checksum` 0.
    """

    seq: int
    checksum: int
    record: bytes
    lost_reason: str = ""


class Segment(NamedTuple):
    """Where the records from `first_seq` on lie."""

    first_seq: int
    path: Path


def encode_frame(payload: bytes) -> bytes:
    """A payload with its length and checksum before it."""
    return _PREFIX.pack(len(payload), zlib.crc32(payload)) + payload


def segment_name(producer: bytes, first_seq: int) -> str:
    """The file name of a segment. By name the segments of a producer are in order."""
    return f"{producer.hex()}-{first_seq:012d}{_SUFFIX}"


def list_segments(directory: Path) -> list[Path]:
    """The segments in a spool, by name; none where the directory does not exist.

    Of each producer they begin where its oldest one does and leave none out, also while it makes more: one
    look at a directory may miss a file that is made meanwhile and yet show a later one, and what lies between
    would pass for lost. So it is looked at twice, and the second look counts up to what the first one saw.

    Raises:
        SpoolError: the directory cannot be read.
    """
    newest: dict[str, str] = {}
    for name in _segment_names(directory):
        producer = name.partition("-")[0]
        newest[producer] = max(name, newest.get(producer, ""))
    names = [name for name in _segment_names(directory) if name <= newest.get(name.partition("-")[0], "")]
    return [directory / name for name in sorted(names)]


def _segment_names(directory: Path) -> list[str]:
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names alone, of what may be many files
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SpoolError(f"the spool {directory} cannot be read: {error.strerror}") from error
    return [name for name in names if name.endswith(_SUFFIX)]


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Try to take a segment over from an owner that is gone.

    Yields:
        True: its owner is gone, and we hold its lock until the block ends. Only then, and only after a
        commit of all of it, may it be deleted. False: its owner lives, another process has claimed it, or it
        is deleted.

    Raises:
        SpoolError: the file cannot be opened or locked.
    """
    file = _lock(path)
    if file is None:
        yield False
        return
    try:
        yield True
    finally:
        file.close()


def _lock(path: Path) -> OwnedFile | None:
    try:
        file = OwnedFile(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpoolError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held the lock before us may have deleted the file: then ours is not the one at `path`.
        if os.path.samestat(os.fstat(file.fd), os.stat(path)):  # noqa: PTH116 - beside fstat
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        file.close()
        raise SpoolError(f"{path} cannot be locked: {error.strerror}") from error
    file.close()
    return None


def remove_claimed(path: Path) -> bool:
    """Delete a committed segment under its lock; False if another process holds that.

    Raises:
        SpoolError: it cannot be claimed or deleted.
    """
    with claim(path) as ours:
        if ours:
            _unlink(path)
            return True
    return not path.exists()


@dataclass(frozen=True, slots=True)
class Finish:
    """What became of a segment in `finish`. With neither `done` nor a `rest` its owner lives."""

    # Nothing is left to do: it is deleted, set aside or was gone already.
    done: bool = False
    # To be committed before `finish` is called again.
    rest: tuple[RawFrame, ...] = ()
    # Where it is kept, if its end cannot be read.
    aside: Path | None = None


def finish(reader: SegmentReader, committed: int) -> Finish:
    """Be done with a segment whose owner is gone and whose records are committed, under its lock.

    Of an end that cannot be read one record at least is lost, but it cannot be known how many: one tombstone
    takes their place, and once that is committed the file is set aside under a name of its own.

    Args:
        reader: has read all that was there; what its owner wrote since then is read here.
        committed: the records of its producer up to this number are committed, all that were read among them.

    Raises:
        SpoolError: it cannot be claimed, read, deleted or set aside.
    """
    path = reader.path
    with claim(path) as ours:
        if not ours:
            return Finish(done=not path.exists())
        if rest := reader.read():
            return Finish(rest=tuple(rest))
        if reader.damage is None or reader.torn:
            _unlink(path)
            return Finish(done=True)
        if committed < reader.next_seq:
            reason = f"{reader.damage}; the rest of the segment cannot be read"
            return Finish(rest=(RawFrame(reader.next_seq, 0, b"", reason),))
        aside = path.with_name(path.name + DAMAGED_SUFFIX)
        try:
            path.replace(aside)
        except OSError as error:
            raise SpoolError(f"{path} is committed but cannot be set aside: {error.strerror}") from error
        return Finish(done=True, aside=aside)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise SpoolError(
            f"{path} is committed but cannot be deleted ({error.strerror}): make its directory writable"
        ) from error


class SegmentReader:
    """Reads the records of one segment in order, also while its owner still writes.

    A frame whose checksum is wrong but whose length leads to a right one is one lost record: it is read as
    a `RawFrame` with a `lost_reason`, and what follows keeps its number. Where that is not so the rest
    cannot be read, and `damage` tells why. Every `read` looks again, so that a frame which was not whole
    because its owner was writing it is read once it is.
    """

    def __init__(self, path: Path) -> None:
        """Open a segment and read its header.

        Raises:
            SpoolError: unreadable, not a segment, or a damaged header.
        """
        self.path = path
        self._damage: str | None = None
        self._torn = False
        self._file = _open_for_reading(path)
        try:
            self.header, self._offset = self._read_header()
        except OSError as error:
            self._file.close()
            if isinstance(error, SpoolError):
                raise
            raise SpoolError(f"{path} cannot be read: {error.strerror}") from error
        self._next_seq = self.header.first_seq

    @property
    def next_seq(self) -> int:
        """The number of the record that the next `read` begins with."""
        return self._next_seq

    @property
    def damage(self) -> str | None:
        """Why the rest could not be read at the last `read`; None where there was none left."""
        return self._damage

    @property
    def torn(self) -> bool:
        """Whether the damage is a last frame cut short, as by the death of its writer: no record was lost."""
        return self._torn

    def read(self, max_bytes: int = 1 << 20) -> list[RawFrame]:
        """The whole frames after those read before; [] at the present end.

        Args:
            max_bytes: stop before exceeding it, though at least one record is returned if there is one.

        Raises:
            SpoolError: the file cannot be read.
        """
        self._damage, self._torn = None, False
        try:
            return self._read(_Window(self._file.fileno()), max_bytes)
        except OSError as error:
            raise SpoolError(f"{self.path} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def _read(self, window: _Window, max_bytes: int) -> list[RawFrame]:
        frames: list[RawFrame] = []
        taken = 0
        while True:
            found = window.frame(self._offset)
            if isinstance(found, _Broken):
                if not found.torn and (lost := self._skip_damaged(window)):
                    frames += lost
                    continue
                if not found.empty:
                    self._damage = f"after record {self._next_seq - 1}: {found.why}"
                    self._torn = found.torn
                return frames
            payload, checksum = found
            taken += len(payload) + _FRAME_COST_BYTES
            if frames and taken > max_bytes:
                return frames
            frames.append(RawFrame(self._next_seq, checksum, payload))
            self._offset += _PREFIX.size + len(payload)
            self._next_seq += 1

    def _skip_damaged(self, window: _Window) -> list[RawFrame]:
        """Step over damaged frames whose lengths lead to a whole one; [] (and no step) if they do not."""
        lost: list[RawFrame] = []
        offset = self._offset
        while len(lost) < _MAX_DAMAGED_RUN:
            found = window.frame(offset)
            if not isinstance(found, _Broken):
                self._offset = offset
                self._next_seq += len(lost)
                return lost
            if found.length is None:
                return []
            reason = f"damaged in the spool ({found.why} at byte {offset})"
            lost.append(RawFrame(self._next_seq + len(lost), 0, b"", reason))
            offset += _PREFIX.size + found.length
        return []

    def _read_header(self) -> tuple[SegmentHeader, int]:
        window = _Window(self._file.fileno())
        if (magic := window.read(0, len(MAGIC))) != MAGIC:
            raise SpoolError(f"{self.path} is no spool segment: it begins with {magic!r}, not {MAGIC!r}")
        found = window.frame(len(MAGIC), limit=_MAX_HEADER_BYTES)
        if isinstance(found, _Broken):
            raise SpoolError(f"{self.path} has a damaged header: {found.why or 'it ends before it'}")
        payload, _ = found
        try:
            header = SegmentHeader.FromString(payload)
        except DecodeError as error:
            raise SpoolError(f"{self.path} has a damaged header: {error}") from None
        if len(header.producer) != 16 or not 0 < header.first_seq < _MAX_SEQ:
            raise SpoolError(
                f"{self.path} has a header with a producer of {len(header.producer)} bytes (16 expected) "
                f"and first record {header.first_seq} (1 to {_MAX_SEQ - 1} expected)"
            )
        return header, len(MAGIC) + _PREFIX.size + len(payload)


@dataclass(frozen=True, slots=True)
class _Broken:
    """No whole frame. `length` is known where a frame lies inside the file, but its checksum is wrong."""

    why: str
    torn: bool = False
    empty: bool = False
    length: int | None = None


class _Window:
    """A file as it is now, read through a buffer of about a megabyte."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._end = os.fstat(fd).st_size
        self._start = 0
        self._buffer = b""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer at the end of the file."""
        size = min(size, self._end - offset)
        begin = offset - self._start
        if begin < 0 or begin + size > len(self._buffer):
            self._start, begin = offset, 0
            self._buffer = os.pread(self._fd, min(max(size, _WINDOW_BYTES), self._end - offset), offset)
        return self._buffer[begin : begin + size]

    def frame(self, offset: int, limit: int = MAX_RECORD_BYTES) -> tuple[bytes, int] | _Broken:
        """Payload and checksum of the frame at `offset`, or why there is none."""
        rest = self._end - offset
        if rest <= 0:
            return _Broken("", torn=True, empty=True)
        prefix = self.read(offset, _PREFIX.size)
        if len(prefix) < _PREFIX.size:
            return _Broken(f"{len(prefix)} bytes where a frame begins", torn=True)
        length, checksum = _PREFIX.unpack(prefix)
        # No record is empty, but a tail of zeros, as a crash of the machine leaves it, would look like many.
        if not 0 < length <= limit:
            return _Broken(f"a frame of {length} bytes (1 to {limit} expected)")
        if length > rest - _PREFIX.size:
            return _Broken(f"{rest - _PREFIX.size} bytes of a frame of {length}", torn=True)
        payload = self.read(offset + _PREFIX.size, length)
        if len(payload) < length:
            return _Broken(f"{len(payload)} bytes of a frame of {length}", torn=True)
        if zlib.crc32(payload) != checksum:
            return _Broken(f"wrong checksum of a frame of {length} bytes", length=length)
        return payload, checksum


def _open_for_reading(path: Path) -> io.FileIO:
    """Open a regular file and nothing else: a link could lead anywhere, a pipe would block."""
    try:
        file = io.FileIO(
            path, "r", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        )
    except OSError as error:
        raise SpoolError(f"{path} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise SpoolError(f"{path} is no regular file")
    return file
