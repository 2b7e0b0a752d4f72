"""The Read service: what is stored, to whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import grpc.aio

from lightning_sdk._proto.read_pb2 import RolloutQuery, RolloutRecords, RolloutSummary, Stats, StatsRequest
from lightning_sdk._proto.read_pb2_grpc import ReadServicer
from lightning_sdk.collector.status import abort_with
from lightning_sdk.collector.store.base import Store

_Message = TypeVar("_Message", RolloutSummary, RolloutRecords)
_Context = grpc.aio.ServicerContext[Any, Any]

# How much is read ahead in one go of a thread: enough to hide the switch, little enough to hold in memory.
_CHUNK_MESSAGES: Final = 256
_CHUNK_BYTES: Final = 1 << 20


class ReadService(ReadServicer):
    """Reads in threads, so that neither the event loop nor the writer waits.

    Args:
        store: what to read.
        refresh: awaited before every RPC, so that its answer tells of all that is to be found by then.
        counters: what the process counts beside the store.
    """

    def __init__(
        self,
        store: Store,
        refresh: Callable[[], Awaitable[None]],
        counters: Callable[[], Mapping[str, int]],
    ) -> None:
        self._store = store
        self._refresh = refresh
        self._counters = counters

    async def ListRollouts(  # noqa: N802 - gRPC's name
        self, request: RolloutQuery, context: _Context
    ) -> AsyncIterator[RolloutSummary]:
        """See read.proto."""
        async for summary in self._stream(self._store.list_rollouts, request, context):
            yield summary

    async def ReadRollouts(  # noqa: N802 - gRPC's name
        self, request: RolloutQuery, context: _Context
    ) -> AsyncIterator[RolloutRecords]:
        """See read.proto."""
        async for rollout in self._stream(self._store.read_stored, request, context):
            yield rollout

    async def GetStats(self, request: StatsRequest, context: _Context) -> Stats:  # noqa: N802 - gRPC's name
        """See read.proto."""
        try:
            await self._refresh()
            stats = await asyncio.to_thread(self._store.stats)
        except Exception as error:
            await abort_with(context, error)
        stats.counters.update(self._counters())
        return stats

    async def _stream(
        self, read: Callable[[RolloutQuery], Iterator[_Message]], query: RolloutQuery, context: _Context
    ) -> AsyncIterator[_Message]:
        try:
            await self._refresh()
            messages = read(query)
            while chunk := await asyncio.to_thread(_next_chunk, messages):
                for message in chunk:
                    yield message
        except Exception as error:
            await abort_with(context, error)


def _next_chunk(messages: Iterator[_Message]) -> list[_Message]:
    chunk: list[_Message] = []
    size_bytes = 0
    for message in messages:
        chunk.append(message)
        size_bytes += message.ByteSize()
        if len(chunk) == _CHUNK_MESSAGES or size_bytes >= _CHUNK_BYTES:
            break
    return chunk
