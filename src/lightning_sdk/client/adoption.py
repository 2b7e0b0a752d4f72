"""The segments of others: of processes that died, and of children that must not send themselves."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import time
from collections import Counter
from pathlib import Path
from typing import Final

from lightning_sdk._proto.spool_pb2 import SegmentHeader
from lightning_sdk.client import faults
from lightning_sdk.client.forks import OwnedFile
from lightning_sdk.client.segments import Segment, SegmentReader, claim, list_segments, remove_claimed
from lightning_sdk.client.sources import Source
from lightning_sdk.errors import SpoolError

# How many producers are adopted at once. Each may hold a file open and a megabyte read ahead, in the agent's
# process; the others wait their turn.
MAX_SOURCES: Final = 16

_log = logging.getLogger("lightning_sdk")


class Adoption:
    """Finds what other producers of one spool owe to the same destination.

    Of all senders with this spool and destination one at a time adopts: the one that holds the lock on
    `adopter-<destination>.lock`. Reading twice would be harmless, but with many processes costly. At most
    `MAX_SOURCES` producers are adopted at once; who lives and has nothing to send makes room for who waits.
    Not thread-safe.
    """

    def __init__(self, directory: Path, destination: str, own: bytes, counters: Counter[str]) -> None:
        """Adopt nothing yet.

        Args:
            directory: the spool.
            destination: only records owed there are taken.
            own: the producer whose records its own sender reads.
            counters: where losses are counted.
        """
        self.sources: dict[bytes, Source] = {}
        # Whether the last scan found more than there was room for.
        self.crowded = False
        # Whether one of those has an owner that never sends itself, and has not had its turn yet.
        self.children_wait = False
        self._directory = directory
        self._destination = destination
        self._own = own
        self._counters = counters
        self._shelves: dict[bytes, _Shelf] = {}
        # When those that live were last set aside for others.
        self._set_aside: dict[bytes, float] = {}
        # What a segment's header says cannot change: each is read once. None: not for us, or unreadable.
        self._headers: dict[Path, SegmentHeader | None] = {}
        name = hashlib.sha256(destination.encode()).hexdigest()[:12]
        self._lock_path = directory / f"adopter-{name}.lock"
        self._lock: OwnedFile | None = None

    def scan(self) -> None:
        """Look for segments to adopt, and for new ones of producers that are adopted.

        Raises:
            SpoolError: the spool cannot be read.
        """
        if not self._is_adopter():
            return
        by_producer: dict[bytes, _Shelf] = {}
        paths = list_segments(self._directory)
        self._headers = {path: self._headers[path] for path in paths if path in self._headers}
        for path in paths:
            header = self._header(path)
            if header is not None and header.producer != self._own:
                shelf = by_producer.setdefault(header.producer, _Shelf())
                shelf.add(Segment(header.first_seq, path), header.spool_only)
        for producer, shelf in self._shelves.items():
            shelf.listed = by_producer.pop(producer).listed if producer in by_producer else []
        self._adopt(by_producer)

    def dependent_sources(self) -> list[Source]:
        """Those adopted whose owners never send themselves."""
        return [source for producer, source in self.sources.items() if self._shelves[producer].spool_only]

    def retire(self) -> None:
        """Delete what is committed and has no owner any more.

        Raises:
            SpoolError: a segment cannot be claimed or read.
        """
        for producer, source in list(self.sources.items()):
            if source.retire():
                self._drop(producer)

    def release(self) -> None:
        """Leave the rest to whoever has a connection."""
        for source in self.sources.values():
            source.close()
        self.sources.clear()
        self._shelves.clear()
        self.crowded = self.children_wait = False
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _adopt(self, waiting: dict[bytes, _Shelf]) -> None:
        """Adopt as many as there is room for, beginning with those that waited longest."""
        self.crowded = self.children_wait = False
        self._set_aside = {
            producer: self._set_aside[producer] for producer in waiting.keys() & self._set_aside
        }
        for producer in sorted(waiting, key=lambda producer: self._set_aside.get(producer, 0.0)):
            shelf = waiting[producer]
            if not (shelf.spool_only or _is_left(shelf.listed[-1].path)):
                continue
            if len(self.sources) >= MAX_SOURCES and not self._make_room():
                self.crowded = True
                later = waiting.keys() - self._shelves.keys() - self._set_aside.keys()
                self.children_wait = any(waiting[other].spool_only for other in later)
                return
            self._shelves[producer] = shelf
            self.sources[producer] = Source(producer, shelf, self._counters)

    def _make_room(self) -> bool:
        """Set one aside that lives and has nothing to send now; False if all are busy."""
        idle = next((producer for producer, source in self.sources.items() if not source.has_more()), None)
        if idle is not None:
            self._set_aside[idle] = time.monotonic()
            self._drop(idle)
        return idle is not None

    def _drop(self, producer: bytes) -> None:
        self.sources.pop(producer).close()
        del self._shelves[producer]

    def _is_adopter(self) -> bool:
        if self._lock is not None:
            return True
        if not self._directory.is_dir():
            return False
        try:
            file = OwnedFile(self._lock_path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise SpoolError(f"{self._lock_path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            faults.pass_on(error)
            return False
        self._lock = file
        return True

    def _header(self, path: Path) -> SegmentHeader | None:
        if path not in self._headers:
            header = None
            try:
                reader = SegmentReader(path)
                reader.close()
                if reader.header.destination == self._destination:
                    header = reader.header
            except SpoolError as error:
                faults.pass_on(error)
                if isinstance(error.__cause__, OSError):
                    return None  # deleted meanwhile, or unreadable only now: look again at the next scan
                self._counters["unreadable"] += 1
                _log.warning("a segment is left alone: %s", error)
            self._headers[path] = header
        return self._headers[path]


class _Shelf:
    """The segments of one other producer, as the last scan found them."""

    def __init__(self) -> None:
        self.listed: list[Segment] = []
        self.spool_only = False

    def add(self, segment: Segment, spool_only: bool) -> None:
        self.listed.append(segment)
        self.listed.sort()
        self.spool_only = spool_only

    def segments(self) -> list[Segment]:
        return list(self.listed)

    def discard(self, segment: Segment) -> bool:
        if not remove_claimed(segment.path):
            return False
        self.listed = [other for other in self.listed if other != segment]
        return True


def _is_left(path: Path) -> bool:
    with claim(path) as ours:
        return ours
