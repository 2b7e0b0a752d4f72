"""The writing end of the spool: one process's records, appended to segments that others may read at once."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

from lightning_sdk._proto.spool_pb2 import SegmentHeader
from lightning_sdk.client import faults
from lightning_sdk.client.forks import OwnedFile
from lightning_sdk.client.segments import (
    MAGIC,
    MAX_RECORD_BYTES,
    Segment,
    encode_frame,
    remove_claimed,
    segment_name,
)
from lightning_sdk.errors import SpoolError
from lightning_sdk.version import version

SEGMENT_BYTES: Final = 16 << 20
# Found out now: finding it imports, which a fork must not cut in two.
_VERSION: Final = version()


class SpoolWriter:
    """Appends the records of one producer to the spool.

    - A record is in the file when `append` returns, and then has the next number.
    - What could not be written leaves no trace in the file, is counted in `lost`, and takes no number.
    - Any thread may append. An append in the middle of another one of the same thread (a finaliser that the
      garbage collector ran there) is carried out by that one before it returns.
    - Nothing is made on disk before the first append.
    """

    def __init__(
        self,
        directory: Path,
        producer: bytes,
        *,
        destination: str = "",
        spool_only: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Prepare to write.

        Args:
            directory: the spool; made, with its parents, private to the user where it is missing.
            producer: 16 bytes that no other writer has.
            destination: where the records are owed; "" for whoever reads the spool.
            spool_only: tells readers that this process will not send the records itself.
            segment_bytes: a segment that would grow beyond this is left for a new one.
        """
        self.directory = directory
        self.producer = producer
        self.destination = destination
        self.spool_only = spool_only
        self._segment_bytes = segment_bytes
        self._lock = threading.RLock()
        self._busy = False
        self._closed = False
        self._deferred: deque[bytes] = deque()
        self._file: OwnedFile | None = None
        # By first number, in order. The sender removes what is committed without a lock: a finaliser may run
        # there, and wait for a lock that an appending thread has.
        self._segments: dict[int, Segment] = {}
        # Of the segment being written: its length up to the last whole frame, and the frame after that while
        # it is being written. An exception of a signal handler can come between the write and its account.
        self._size = 0
        self._unaccounted = 0
        self._written = 0
        self._lost = 0

    @property
    def written(self) -> int:
        """Records on disk, which is also the number of the last one."""
        return self._written

    @property
    def lost(self) -> int:
        """Records that could not be written."""
        return self._lost

    def append(self, payload: bytes) -> None:
        """Write a serialized record.

        Raises:
            SpoolError: it cannot be written; it is counted in `lost`.
        """
        if not 0 < len(payload) <= MAX_RECORD_BYTES:
            with self._lock:
                self._lost += 1
            raise SpoolError(
                f"a record of {len(payload)} bytes is not written: 1 to {MAX_RECORD_BYTES} expected"
            )
        if self._closed:  # asked without the lock, so that `close` holds up nobody
            self._lost += 1
            raise SpoolError("a record is not written to the spool: it is closed")
        frame = encode_frame(payload)
        with self._lock:
            if self._busy:
                self._deferred.append(frame)
                return
            try:
                self._busy = True
                self._write(frame)
            finally:
                self._busy = False
                if self._deferred:
                    self._write_deferred()

    def segments(self) -> list[Segment]:
        """The segments on disk, oldest first; the last one may still be written."""
        return list(self._segments.values())

    def discard(self, segment: Segment) -> bool:
        """Delete a segment that is committed and no longer written; False if another process claimed it."""
        if not remove_claimed(segment.path):
            return False
        self._segments.pop(segment.first_seq, None)
        return True

    def close(self) -> None:
        """Give up the segment; what is appended from now on is lost. Idempotent."""
        self._closed = True
        with self._lock:
            if self._file is not None and not self._file.closed:
                self._settle(os.fstat(self._file.fd).st_size)
            self._seal()

    def _write_deferred(self) -> None:
        while self._deferred:
            frame = self._deferred.popleft()
            try:
                self._busy = True
                self._write(frame)
            except SpoolError as error:
                faults.pass_on(error)
                # Counted; the caller whose record this is has long returned.
            finally:
                self._busy = False

    def _write(self, frame: bytes) -> None:
        try:
            file = self._writable(len(frame))
            self._unaccounted = len(frame)
            written = os.write(file.fd, frame)
            while written < len(frame):
                written += os.write(file.fd, frame[written:])
        except OSError as error:
            self._lost += 1
            self._undo()
            faults.pass_on(error)
            reason = str(error) if isinstance(error, SpoolError) else error.strerror
            raise SpoolError(
                f"a record of {len(frame)} bytes cannot be written to the spool {self.directory}: {reason}"
            ) from error
        self._account(len(frame))

    def _account(self, frame_bytes: int) -> None:
        # No call in between, so no signal handler either: the three change together.
        self._size += frame_bytes
        self._written += 1
        self._unaccounted = 0

    def _writable(self, frame_bytes: int) -> OwnedFile:
        """The file to write to: the present one if it is sound, still there and has room."""
        if self._closed:
            raise SpoolError("it is closed")
        file = self._file
        # It is closed if a signal handler's exception came before it was forgotten.
        if file is not None and not file.closed:
            status = os.fstat(file.fd)
            if self._unaccounted:
                self._settle(status.st_size)
            # Without a name it was deleted under us, and what we wrote would vanish with our descriptor.
            if status.st_nlink and self._size + frame_bytes <= self._segment_bytes:
                return file
        return self._open()

    def _settle(self, file_bytes: int) -> None:
        """Take account of a write that was interrupted before it was."""
        if self._unaccounted and file_bytes == self._size + self._unaccounted:
            self._account(self._unaccounted)
        elif self._unaccounted:
            self._undo()

    def _undo(self) -> None:
        """Cut off what a failed write left behind the last whole frame."""
        self._unaccounted = 0
        if self._file is None:
            return
        try:
            os.ftruncate(self._file.fd, self._size)
        except OSError as error:
            # Readers will find a torn tail here; the next record begins a segment of its own.
            self._seal()
            faults.pass_on(error)

    def _open(self) -> OwnedFile:
        """Begin a new segment. Under its final name it is never seen without lock and header."""
        self._seal()
        make_private_directory(self.directory)
        name = segment_name(self.producer, self._written + 1)
        path, unfinished = self.directory / name, self.directory / f".{name}.new"
        start = MAGIC + encode_frame(self._header())
        file = OwnedFile(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            written = os.write(file.fd, start)
            while written < len(start):
                written += os.write(file.fd, start[written:])
            unfinished.rename(path)
        except BaseException:
            file.close()
            unfinished.unlink(missing_ok=True)
            raise
        self._file, self._size = file, len(start)
        self._segments[self._written + 1] = Segment(self._written + 1, path)
        return file

    def _seal(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _header(self) -> bytes:
        return SegmentHeader(
            producer=self.producer,
            first_seq=self._written + 1,
            destination=self.destination,
            created_ns=time.time_ns(),
            pid=os.getpid(),
            host=os.uname().nodename,
            version=_VERSION,
            spool_only=self.spool_only,
        ).SerializeToString()


def make_private_directory(directory: Path) -> None:
    """Make a directory and the parents it lacks, all with mode 0700.

    Raises:
        OSError: one cannot be made.
    """
    if not directory.is_dir():
        make_private_directory(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
