"""Moves what lies in the spool into the store: segments that are owed to whoever reads this spool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lightning_sdk._proto.ingest_pb2 import Frame
from lightning_sdk.client.segments import SegmentReader, claim, list_segments
from lightning_sdk.collector.store.base import Store
from lightning_sdk.errors import SpoolError

DAMAGED_SUFFIX: Final = ".damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
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


class Adopter:
    """Adopts again and again, and reads of a living owner's segment only what is new.

    Use it from one thread at a time. What it reads is in the store before a segment is deleted, so that a
    death at any point leaves nothing lost; what is read twice, the store knows.
    """

    def __init__(self, spool: Path, store: Store, *, destination: str = "") -> None:
        self._spool = spool
        self._store = store
        self._destination = destination
        self._readers: dict[Path, SegmentReader] = {}

    def adopt(self) -> Adoption:
        """One pass.

        Raises:
            SpoolError: the spool cannot be read.
            StoreError: the store cannot be written; whatever was not stored is still in the spool.
        """
        one_pass = _Pass(self._store, self._destination, self._readers)
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


def adopt_spool(spool: Path, store: Store, *, destination: str = "") -> Adoption:
    """Adopt what lies in the spool by now.

    Args:
        spool: the directory; none is the same as an empty one.
        store: open for writing.
        destination: only segments that name it are taken; the others are counted as waiting.

    Raises:
        SpoolError: the spool cannot be read.
        StoreError: the store cannot be written; whatever was not stored is still in the spool.
    """
    adopter = Adopter(spool, store, destination=destination)
    try:
        return adopter.adopt()
    finally:
        adopter.close()


class _Pass:
    """One pass: what it found so far."""

    def __init__(self, store: Store, destination: str, readers: dict[Path, SegmentReader]) -> None:
        self._store = store
        self._destination = destination
        self._readers = readers
        self._records = 0
        self._found: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._problems: list[str] = []

    def result(self) -> Adoption:
        return Adoption(
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
            if reader.header.destination != self._destination:
                self._waiting[reader.header.destination] += 1
                return
            self._copy(reader)
            with claim(path) as ours:
                if ours:
                    self._copy(reader)  # what its owner wrote before it died, after the first copy
                    self._remove(path, reader)
                else:
                    self._found["living"] += 1
                    keep = True
        except SpoolError as error:
            self._unreadable(path, error)
        finally:
            if keep:
                self._readers[path] = reader
            else:
                reader.close()

    def _copy(self, reader: SegmentReader) -> None:
        """Store every record of the segment that the store does not have."""
        producer = reader.header.producer
        while frames := reader.read():
            known = self._store.high_water(producer)
            new = [
                Frame(
                    seq=frame.seq,
                    checksum=frame.checksum,
                    record=frame.record,
                    lost_reason=frame.lost_reason,
                )
                for frame in frames
                if frame.seq > known
            ]
            if new:
                self._store.append(producer, new)
                self._records += len(new)

    def _remove(self, path: Path, reader: SegmentReader) -> None:
        """Its owner is gone and all that can be read is stored: delete it, or set it aside.

        Raises:
            SpoolError: the directory does not allow it; the next pass tries again.
        """
        damaged = reader.damage is not None and not reader.torn
        try:
            if damaged:
                path.rename(path.with_name(path.name + DAMAGED_SUFFIX))
            else:
                path.unlink()
        except OSError as error:
            raise SpoolError(
                f"{path} was adopted but cannot be deleted ({error.strerror}): make its directory writable"
            ) from None
        self._found["damaged" if damaged else "segments"] += 1
        if damaged:
            self._problems.append(
                f"{path.name} is damaged {reader.damage}: kept as {path.name}{DAMAGED_SUFFIX}"
            )
        elif reader.torn:
            self._found["torn"] += 1
            self._problems.append(
                f"the last record of {path.name} was not written to its end ({reader.damage})"
            )

    def _unreadable(self, path: Path, error: SpoolError) -> None:
        if path.exists():  # else another process has adopted it meanwhile
            self._found["unreadable"] += 1
            self._problems.append(str(error))
