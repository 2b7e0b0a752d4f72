"""Group commit: one thread writes to the store, many batches a transaction; who waits holds an awaitable.

- Memory is bounded by bytes: `submit` waits until there is room, so that whoever feeds it stops reading
  its stream, and gRPC's flow control stops the sender. Those who wait hold what they have read: where that is
  too much in all, the next one is sent away, to come again later.
- What has been taken is committed, or its awaitable raises; `close()` commits the rest first.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lightning_sdk._proto.ingest_pb2 import Ack
from lightning_sdk.collector.store.base import Batch, Store
from lightning_sdk.errors import CollectorError

# A commit takes what is queued, up to this: enough to hide the cost of a sync, little enough to ack soon.
_COMMIT_BYTES: Final = 8 << 20
_MAX_QUEUED_BYTES: Final = 64 << 20
_MAX_WAITING_BYTES: Final = 256 << 20


@dataclass(slots=True)
class _Job:
    batches: Sequence[Batch]
    size_bytes: int
    done: asyncio.Future[list[Ack]]


class GroupCommitter:
    """Made and used in one event loop; the store is written in a thread of its own."""

    def __init__(
        self,
        store: Store,
        *,
        max_queued_bytes: int = _MAX_QUEUED_BYTES,
        max_waiting_bytes: int = _MAX_WAITING_BYTES,
    ) -> None:
        self._store = store
        self._max_queued_bytes = max_queued_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._queued_bytes = 0
        self._waiting_bytes = 0
        self._room = asyncio.Condition()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="lightning-commit", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether something waits to be committed."""
        return self._queued_bytes > 0

    async def submit(self, batches: Sequence[Batch], size_bytes: int) -> asyncio.Future[list[Ack]]:
        """Queue batches, when there is room for them. The future has their Acks once they are committed.

        Args:
            batches: of any producers; committed together.
            size_bytes: what they take in memory, about. More than fits at all is taken when nothing else is
            queued.

        Raises:
            CollectorError: closed, or too much is waiting already. The future raises what `Store.append_many` raises.
        """
        async with self._room:
            if not self._has_room(size_bytes):
                await self._wait_for_room(size_bytes)
            if self._closed:
                raise CollectorError("the collector is stopping: send the records again later")
            self._queued_bytes += size_bytes
            job = _Job(batches, size_bytes, self._loop.create_future())
            self._jobs.put(job)
        return job.done

    async def close(self) -> None:
        """Commit what is queued, and end. Idempotent."""
        async with self._room:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
                self._room.notify_all()
        await asyncio.to_thread(self._thread.join)

    async def _wait_for_room(self, size_bytes: int) -> None:
        if self._waiting_bytes + size_bytes > self._max_waiting_bytes:
            raise CollectorError("more is being sent than can be stored just now: send it again later")
        self._waiting_bytes += size_bytes
        try:
            await self._room.wait_for(lambda: self._closed or self._has_room(size_bytes))
        finally:
            self._waiting_bytes -= size_bytes

    def _has_room(self, size_bytes: int) -> bool:
        return not self._queued_bytes or self._queued_bytes + size_bytes <= self._max_queued_bytes

    def _run(self) -> None:
        last = False
        while not last:
            jobs, last = self._next_jobs()
            acks: list[Ack] = []
            failure: Exception | None = None
            try:
                acks = self._store.append_many([batch for job in jobs for batch in job.batches])
            except Exception as error:  # whoever waits is told; the thread serves the next ones
                failure = error
            self._loop.call_soon_threadsafe(self._settle, jobs, acks, failure)

    def _next_jobs(self) -> tuple[list[_Job], bool]:
        """Wait for a job; take with it those that are there already. True: the last ones."""
        jobs: list[_Job] = []
        size_bytes = 0
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            size_bytes += job.size_bytes
            if size_bytes >= _COMMIT_BYTES:
                return jobs, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True

    def _settle(self, jobs: list[_Job], acks: list[Ack], failure: Exception | None) -> None:
        position = 0
        for job in jobs:
            self._queued_bytes -= job.size_bytes
            own = acks[position : position + len(job.batches)]
            position += len(job.batches)
            if job.done.done():
                continue  # its stream is gone
            if failure is not None:
                job.done.set_exception(failure)
                job.done.exception()  # not "never retrieved" where its stream ends before it looks
            else:
                job.done.set_result(own)
        self._loop.create_task(self._tell_room())

    async def _tell_room(self) -> None:
        async with self._room:
            self._room.notify_all()
