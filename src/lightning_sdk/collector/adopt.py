"""Moves what lies in the spool into the store: segments that are owed to whoever reads this spool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lightning_sdk._proto.ingest_pb2 import Frame
from lightning_sdk.client.segments import RawFrame, SegmentReader, claim, finish, list_segments
from lightning_sdk.collector.store.base import Store
from lightning_sdk.errors import SpoolError

# Segments of living owners that stay open from one pass to the next; others are read from their beginning.
_MAX_OPEN: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionReport:
    """What one pass over the spool did."""

    # Records that were not in the store before.
    records: int = 0
    # Segments that were adopted to their end and deleted.
    segments: int = 0
    # Segments whose owner lives: copied as far as they go, and left.
    living: int = 0
    # Segments that ended in a record cut short by the death of its writer.
    torn: int = 0
    # Segments that could not be read to their end, now called *.damaged.
    damaged: int = 0
    # Files that could not be read at all, or not deleted; left as they are.
    unreadable: int = 0
    # Segments that are owed elsewhere, by destination; left as they are.
    waiting: Mapping[str, int] = field(default_factory=dict)
    # A sentence for each torn, damaged or unreadable one.
    problems: tuple[str, ...] = ()


def _is_nobodys(destination: str) -> bool:
    return not destination


def _sends_itself(reader: SegmentReader) -> bool:
    """Whether a living owner streams this segment to its destination, so that nobody else needs to."""
    if not reader.header.destination or reader.header.spool_only:
        return False
    with claim(reader.path) as owner_is_gone:
        return not owner_is_gone


class Adopter:
    """Adopts again and again, and reads of a living owner's segment only what is new.

    Use it from one thread at a time. What it reads is in the store before a segment is deleted, so that a
    death at any point leaves nothing lost; what is read twice, the store knows.
    """

    def __init__(self, spool: Path, store: Store, *, is_ours: Callable[[str], bool] = _is_nobodys) -> None:
        self._spool = spool
        self._store = store
        self._is_ours = is_ours
        self._readers: dict[Path, SegmentReader] = {}

    def adopt(self) -> AdoptionReport:
        """One pass.

        Raises:
            SpoolError: the spool cannot be read.
            StoreError: the store cannot be written; whatever was not stored is still in the spool.
        """
        one_pass = _Pass(self._store, self._is_ours, self._readers)
        paths = list_segments(self._spool)
        self._forget_all_but(set(paths))
        for path in paths:
            one_pass.adopt(path)
        return one_pass.result()

    def close(self) -> None:
        """Close the segments that are open. Idempotent."""
        self._forget_all_but(set())

    def _forget_all_but(self, paths: set[Path]) -> None:
        for path in set(self._readers) - paths:
            self._readers.pop(path).close()


def adopt_spool(spool: Path, store: Store, *, is_ours: Callable[[str], bool] = _is_nobodys) -> AdoptionReport:
    """Adopt what lies in the spool by now.

    Args:
        spool: the directory; none is the same as an empty one.
        store: open for writing.
        is_ours: whether segments with a destination are to be taken; by default those that have none. The others
            are counted as waiting.

    Raises:
        SpoolError: the spool cannot be read.
        StoreError: the store cannot be written; whatever was not stored is still in the spool.
    """
    adopter = Adopter(spool, store, is_ours=is_ours)
    try:
        return adopter.adopt()
    finally:
        adopter.close()


class _Pass:
    """One pass: what it found so far."""

    def __init__(
        self, store: Store, is_ours: Callable[[str], bool], readers: dict[Path, SegmentReader]
    ) -> None:
        self._store = store
        self._is_ours = is_ours
        self._readers = readers
        self._records = 0
        self._found: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._problems: list[str] = []

    def result(self) -> AdoptionReport:
        return AdoptionReport(
            records=self._records,
            waiting=dict(self._waiting),
            problems=tuple(self._problems),
            **self._found,
        )

    def adopt(self, path: Path) -> None:
        """Take one segment as far as it can be taken. One that makes trouble does not hold up the others."""
        try:
            reader = self._readers.pop(path, None) or SegmentReader(path)
        except SpoolError as error:
            self._unreadable(path, error)
            return
        keep = False
        try:
            if not self._is_ours(reader.header.destination):
                self._waiting[reader.header.destination] += 1
                return
            if _sends_itself(reader):
                self._found["living"] += 1
                return
            while frames := reader.read():
                self._store_new(reader.header.producer, frames)
            keep = not self._finish(reader)
        except SpoolError as error:
            self._unreadable(path, error)
        finally:
            if keep and len(self._readers) < _MAX_OPEN:
                self._readers[path] = reader
            else:
                reader.close()

    def _store_new(self, producer: bytes, frames: Iterable[RawFrame]) -> None:
        """Store what the store does not have yet."""
        known = self._store.high_water(producer)
        new = [
            Frame(seq=frame.seq, checksum=frame.checksum, record=frame.record, lost_reason=frame.lost_reason)
            for frame in frames
            if frame.seq > known
        ]
        if new:
            self._store.append(producer, new)
            self._records += sum(not frame.lost_reason for frame in new)

    def _finish(self, reader: SegmentReader) -> bool:
        """Delete the segment or set it aside, with all of it stored; False if its owner lives."""
        # What was read is stored, even where an earlier segment is missing and holds back the high water.
        finished = finish(reader, reader.next_seq - 1)
        while finished.rest:
            self._store_new(reader.header.producer, finished.rest)
            finished = finish(reader, finished.rest[-1].seq)
        name = reader.path.name
        if not finished.done:
            self._found["living"] += 1
            return False
        self._found["damaged" if finished.aside else "segments"] += 1
        if finished.aside:
            self._problems.append(f"{name} is damaged {reader.damage}: kept as {finished.aside.name}")
        elif reader.torn:
            self._found["torn"] += 1
            self._problems.append(f"the last record of {name} was not written to its end ({reader.damage})")
        return True

    def _unreadable(self, path: Path, error: SpoolError) -> None:
        if path.exists():  # else another process has adopted it meanwhile
            self._found["unreadable"] += 1
            self._problems.append(str(error))
