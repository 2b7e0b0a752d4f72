"""One connection to the collector: what is sent next, and what an answer means. Knows nothing of gRPC."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Final

from lightning_sdk._proto.ingest_pb2 import Ack, Batch, IngestRequest, Open
from lightning_sdk.client.adoption import MAX_SOURCES, Adoption
from lightning_sdk.client.segments import MAX_MESSAGE_BYTES
from lightning_sdk.client.sources import Source
from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.client.wakeup import Wakeup

# Batches that may be on their way without an answer.
WINDOW_BATCHES: Final = 16
# How often the spool is searched for segments of others, and how often those of living children are read on.
SCAN_INTERVAL_S: Final = 1.0
TAIL_INTERVAL_S: Final = 0.5
# How long records are gathered for one batch after the first of them.
_LINGER_S: Final = 0.02

_log = logging.getLogger("lightning_sdk")


class Backlog:
    """All that one sender has to send: its own producer's records, and what it adopted.

    `changed` is the lock around everything here, and tells of commits.
    """

    def __init__(self, spool: SpoolWriter) -> None:
        """The backlog of a producer with this spool."""
        self.changed = threading.Condition()
        self.counters: Counter[str] = Counter()
        self.message_bytes = MAX_MESSAGE_BYTES
        self.own = Source(spool.producer, spool, self.counters)
        self._spool = spool
        self._adoption = Adoption(spool.directory, spool.destination, spool.producer, self.counters)
        self._next_scan = 0.0

    def pending(self) -> bool:
        """Whether anything is to be sent or deleted.

        Raises:
            SpoolError: the spool cannot be read.
        """
        self.refresh()
        return self._spool.written > self.own.committed or bool(self._adoption.sources)

    def refresh(self, *, now: bool = False) -> None:
        """Delete segments of others that are done with, and look for more: if it is time, or `now`.

        Raises:
            SpoolError: the spool cannot be read.
        """
        with self.changed:
            self._adoption.retire()
            room = self._adoption.crowded and len(self._adoption.sources) < MAX_SOURCES
            if now or room or time.monotonic() >= self._next_scan:
                self._next_scan = time.monotonic() + SCAN_INTERVAL_S
                self._adoption.scan()

    def sources(self) -> list[Source]:
        """Those with something in the spool."""
        own = [self.own] if self._spool.segments() else []
        return own + list(self._adoption.sources.values())

    def owes_children(self) -> bool:
        """Whether there are records of producers that only spool, and depend on us.

        Raises:
            SpoolError: the spool cannot be read.
        """
        with self.changed:
            adoption = self._adoption
            return adoption.children_wait or any(source.has_more() for source in adoption.dependent_sources())

    def idle_s(self) -> float:
        """How long to wait for news before looking again."""
        return TAIL_INTERVAL_S if self._adoption.sources else SCAN_INTERVAL_S

    def disconnected(self) -> None:
        """Let another process adopt; what is our own waits."""
        with self.changed:
            self.own.close()
            self._adoption.release()
            self._next_scan = 0.0
            self.changed.notify_all()


class Stream:
    """The two directions of one connection, for two threads: `requests` and `acknowledged`."""

    def __init__(self, backlog: Backlog, wake: Wakeup, stopping: Wakeup) -> None:
        """A connection about to be made.

        Args:
            backlog: what to send.
            wake: set when there is something new to send, by whoever wrote it.
            stopping: set when the sender is to stop; it wakes us, too.
        """
        # Set when a batch of ours was committed: the connection works.
        self.progressed = False
        # What went wrong on our side.
        self.failure: Exception | None = None
        self._backlog = backlog
        self._wake = wake
        self._stopping = stopping
        self._over = False
        self._opened: dict[bytes, Source] = {}
        # The last numbers of the batches without an answer, by producer.
        self._unanswered: dict[bytes, deque[int]] = {}
        self._turn = 0

    def requests(self) -> Iterator[IngestRequest]:
        """What to send, as it comes; ends with `end`, or with a failure of our own."""
        try:
            while True:
                self._wake.clear()
                if self._over or self._stopping.is_set():
                    return
                self._backlog.refresh()
                sent = False
                for request in self._due():
                    sent = True
                    yield request
                if not sent and self._wake.wait(self._backlog.idle_s()):
                    time.sleep(_LINGER_S)
        except Exception as error:  # gRPC would log it, and say nothing to us
            self.failure = error

    def acknowledged(self, ack: Ack) -> None:
        """Take note of an answer.

        Raises:
            SpoolError: what is committed cannot be deleted.
        """
        with self._backlog.changed:
            source = self._opened.get(ack.producer)
            if source is None:
                return
            self._count_refusals(source, ack)
            was_full = self._in_flight() >= WINDOW_BATCHES
            if not source.ready:
                source.rewind(ack.committed_through)
                self._wake.set()
            else:
                source.acknowledge(ack.committed_through)
                self.progressed = True
            unanswered = self._unanswered[ack.producer]
            while unanswered and unanswered[0] <= source.committed:
                unanswered.popleft()
            self._backlog.changed.notify_all()
        # Of what is adopted a segment may be done with now, and make room for another.
        if was_full or source is not self._backlog.own:
            self._wake.set()

    def end(self) -> None:
        """Nothing more is sent."""
        self._over = True
        self._wake.set()

    def _due(self) -> Iterator[IngestRequest]:
        """One request for each source that has one, beginning with another one each time."""
        with self._backlog.changed:
            sources = self._backlog.sources()
            for producer in self._opened.keys() - {source.producer for source in sources}:
                del self._opened[producer], self._unanswered[producer]
        self._turn += 1
        for index in range(len(sources)):
            request = self._request(sources[(self._turn + index) % len(sources)])
            if request is not None:
                yield request

    def _request(self, source: Source) -> IngestRequest | None:
        with self._backlog.changed:
            if self._opened.get(source.producer) is not source:
                self._opened[source.producer] = source
                self._unanswered[source.producer] = deque()
                return IngestRequest(open=Open(producer=source.producer))
            if not source.ready or self._in_flight() >= WINDOW_BATCHES:
                return None
            frames = source.next_batch(self._backlog.message_bytes)
            if not frames:
                return None
            self._unanswered[source.producer].append(frames[-1].seq)
        return IngestRequest(batch=Batch(producer=source.producer, frames=frames))

    def _in_flight(self) -> int:
        return sum(len(unanswered) for unanswered in self._unanswered.values())

    def _count_refusals(self, source: Source, ack: Ack) -> None:
        counters = self._backlog.counters
        for refusal in ack.refusals:
            if refusal.seq <= source.committed:
                continue
            counters["refused"] += 1
            if counters["refused"] == 1:
                _log.warning(
                    "the collector refused record %d of producer %s: %s (more are counted, not logged)",
                    refusal.seq,
                    ack.producer.hex(),
                    refusal.reason,
                )
