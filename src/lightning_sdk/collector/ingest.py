"""Ingest.Stream: batches of records in, acks after the commit out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import grpc.aio

from lightning_sdk._proto.ingest_pb2 import Ack, IngestRequest, IngestResponse
from lightning_sdk._proto.ingest_pb2_grpc import IngestServicer
from lightning_sdk.collector.committer import GroupCommitter
from lightning_sdk.collector.status import abort_with
from lightning_sdk.collector.store.admission import check_producer
from lightning_sdk.errors import CollectorError, WireError

# Batches of one stream between being read and being acked. Senders keep 8 to 16 in flight.
_WINDOW: Final = 32
# One batch is one step of the writer: it must not keep the other streams waiting.
_MAX_FRAMES: Final = 16_384


class IngestService(IngestServicer):
    """One reading task a stream, which waits while there is no room; the handler itself answers, in order."""

    def __init__(self, committer: GroupCommitter) -> None:
        self._committer = committer
        self._readers: set[asyncio.Task[None]] = set()
        self._draining = False

    async def Stream(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[IngestRequest],
        context: grpc.aio.ServicerContext[IngestRequest, IngestResponse],
    ) -> AsyncIterator[IngestResponse]:
        """See ingest.proto."""
        # What the reading task hands over; an exception or None ends the stream.
        steps: asyncio.Queue[asyncio.Future[list[Ack]] | BaseException | None] = asyncio.Queue()
        window = asyncio.Semaphore(_WINDOW)

        def ended(reader: asyncio.Task[None]) -> None:
            self._readers.discard(reader)
            steps.put_nowait(_stopping() if reader.cancelled() else reader.exception())

        async def read() -> None:
            async for request in request_iterator:
                await window.acquire()
                steps.put_nowait(await self._take(request))

        reader = asyncio.create_task(read())
        self._readers.add(reader)
        reader.add_done_callback(ended)
        if self._draining:
            reader.cancel()
        try:
            while (step := await steps.get()) is not None:
                if isinstance(step, BaseException):
                    raise step
                for ack in await step:
                    yield IngestResponse(ack=ack)
                window.release()
        except Exception as error:
            await abort_with(context, error)
        finally:
            reader.cancel()

    def drain(self) -> None:
        """Read no more; answer what has been read, then end each stream."""
        self._draining = True
        for reader in self._readers:
            reader.cancel()

    async def _take(self, request: IngestRequest) -> asyncio.Future[list[Ack]]:
        kind = request.WhichOneof("message")
        if kind is None:
            raise WireError("an ingest message that is neither open nor batch")
        # An open is a batch of nothing: its ack comes after the commit of all that came before.
        producer = request.open.producer if kind == "open" else request.batch.producer
        check_producer(producer)
        frames = () if kind == "open" else request.batch.frames
        if len(frames) > _MAX_FRAMES:
            raise WireError(f"a batch of {len(frames)} records, of at most {_MAX_FRAMES}: send several")
        return await self._committer.submit([(producer, frames)], request.ByteSize())


def _stopping() -> CollectorError:
    return CollectorError("the collector is stopping: send the records again later")
