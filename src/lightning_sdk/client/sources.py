"""One producer's segments as a sender reads them: in order, from where the collector stands."""

from __future__ import annotations

import logging
from collections import Counter, deque
from itertools import pairwise
from typing import Final, Protocol

from lightning_sdk._proto.ingest_pb2 import Frame
from lightning_sdk.client import faults
from lightning_sdk.client.segments import RawFrame, Segment, SegmentReader, finish
from lightning_sdk.errors import SpoolError

BATCH_FRAMES: Final = 512
BATCH_BYTES: Final = 1 << 20
# What a message holds beside the bytes of a single record.
MESSAGE_OVERHEAD_BYTES: Final = 256

_log = logging.getLogger("lightning_sdk")


class Shelf(Protocol):
    """Where a producer's segments lie."""

    def segments(self) -> list[Segment]:
        """The segments that are there now, oldest first; the last one may still be written."""

    def discard(self, segment: Segment) -> bool:
        """Delete a segment that is committed and no longer written; False if that must wait."""


class Source:
    """The records of one producer, numbered without a gap, as batches to send.

    A number whose record cannot be had (damaged, its segment missing, too large for the collector) becomes
    a frame with a `lost_reason`, so that the collector can acknowledge what comes after it. Memory holds
    about one batch; all else stays in the files. Not thread-safe.
    """

    def __init__(self, producer: bytes, shelf: Shelf, counters: Counter[str]) -> None:
        """A source that waits for `rewind`.

        Args:
            producer: whose records.
            shelf: where they lie.
            counters: where losses are counted, by why.
        """
        self.producer = producer
        # All records up to here are committed.
        self.committed = 0
        # Whether the collector has said where to resume.
        self.ready = False
        self._shelf = shelf
        self._counters = counters
        self._next = 1
        self._read_ahead: deque[RawFrame] = deque()
        self._reader: SegmentReader | None = None
        self._reading: Segment | None = None
        # Numbers up to here that no segment gives are lost, and why.
        self._lost_through = 0
        self._lost_reason = ""
        # Why `_reading` could not be opened.
        self._entry_error = ""
        # Losses up to here are counted, however often they are sent.
        self._counted_through = 0

    def rewind(self, committed: int) -> None:
        """Go on after `committed`, which is how far the collector has them."""
        self.close()
        self.ready = True
        self.committed = committed
        self._next = committed + 1
        self._lost_through = 0
        self._discard_committed()

    def next_batch(self, message_bytes: int) -> list[Frame]:
        """The next frames to send; [] if there are none now.

        Args:
            message_bytes: the largest message that the collector takes.

        Raises:
            SpoolError: a segment cannot be opened or read at the moment.
        """
        frames: list[Frame] = []
        taken = 0
        while len(frames) < BATCH_FRAMES and (raw := self._peek()) is not None:
            taken += len(raw.record)
            if frames and taken > BATCH_BYTES:
                break
            frames.append(self._frame(raw, message_bytes))
            self._next += 1
        return frames

    def acknowledge(self, committed: int) -> None:
        """Take note of a commit, and delete the segments that are done with."""
        self.committed = max(self.committed, min(committed, self._next - 1))
        self._discard_committed()

    def has_more(self) -> bool:
        """Whether anything of it is not committed yet, as far as is known.

        Raises:
            SpoolError: a segment cannot be opened or read.
        """
        return not self.ready or self.committed < self._next - 1 or self._peek() is not None

    def retire(self) -> bool:
        """Delete the last segment, if its owner is gone and all of it is committed.

        Returns:
            Whether nothing is left to do here.

        Raises:
            SpoolError: it cannot be claimed or read.
        """
        if self.has_more():
            return False
        segments = self._shelf.segments()
        if not segments or self._reader is None or self._reading != segments[-1]:
            return not segments
        finished = finish(self._reader, self.committed)
        self._read_ahead.extend(finished.rest)
        if finished.done:
            self._report_end(self._reader)
        return finished.done

    def close(self) -> None:
        """Close what is open."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._reading = None
        self._entry_error = ""
        self._read_ahead.clear()
        self.ready = False

    def _peek(self) -> RawFrame | None:
        while True:
            while self._read_ahead and self._read_ahead[0].seq < self._next:
                self._read_ahead.popleft()
            if self._read_ahead and self._read_ahead[0].seq == self._next:
                return self._read_ahead[0]
            if self._next <= self._lost_through:
                return RawFrame(self._next, 0, b"", self._lost_reason)
            if not self._read_more():
                return None

    def _read_more(self) -> bool:
        # Asked before reading: only if the next segment was there before we came to the end of this one
        # is that the end for good.
        following = self._following()
        if self._reader is not None:
            frames = self._reader.read()
            if frames:
                self._read_ahead.extend(frames)
                return True
            if following is not None:
                self._report_end(self._reader)
        if following is None:
            return False
        why = self._reader.damage if self._reader is not None else self._entry_error
        self._lose(following.first_seq - 1, why or "its segment is missing from the spool")
        self._enter(following)
        return True

    def _following(self) -> Segment | None:
        segments = self._shelf.segments()
        if self._reading is not None:
            later = (segment for segment in segments if segment.first_seq > self._reading.first_seq)
            return next(later, None)
        begun = [segment for segment in segments if segment.first_seq <= self._next]
        return begun[-1] if begun else next(iter(segments), None)

    def _enter(self, segment: Segment) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader, self._reading, self._entry_error = None, segment, ""
        try:
            self._reader = SegmentReader(segment.path)
        except SpoolError as error:
            faults.pass_on(error)
            if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
                self._reading = None
                raise  # the file may be sound: too many are open, say
            self._entry_error = str(error)

    def _lose(self, through: int, reason: str) -> None:
        if through >= self._next:
            self._lost_through, self._lost_reason = through, reason

    def _frame(self, raw: RawFrame, message_bytes: int) -> Frame:
        if raw.lost_reason:
            self._count_loss("damaged", raw.seq, raw.lost_reason)
            return Frame(seq=raw.seq, lost_reason=raw.lost_reason)
        if len(raw.record) + MESSAGE_OVERHEAD_BYTES > message_bytes:
            reason = f"a record of {len(raw.record)} bytes; the collector takes messages of {message_bytes}"
            self._count_loss("too_large", raw.seq, reason)
            return Frame(seq=raw.seq, lost_reason=reason)
        return Frame(seq=raw.seq, checksum=raw.checksum, record=raw.record)

    def _count_loss(self, name: str, seq: int, reason: str) -> None:
        if seq > self._counted_through:
            self._counted_through = seq
            self._tell(name, f"record {seq} of producer {self.producer.hex()} is lost: {reason}")

    def _report_end(self, reader: SegmentReader) -> None:
        if reader.damage is not None:
            self._tell("torn_tails" if reader.torn else "unreadable", f"{reader.path}: {reader.damage}")

    def _tell(self, name: str, what: str) -> None:
        self._counters[name] += 1
        if self._counters[name] == 1:
            _log.warning("%s (further cases are counted, not logged)", what)

    def _discard_committed(self) -> None:
        segments = self._shelf.segments()
        for segment, following in pairwise(segments):
            if following.first_seq - 1 > self.committed or not self._shelf.discard(segment):
                return
