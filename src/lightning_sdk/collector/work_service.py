"""The Work service: the broker's connections. See work.proto."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

import grpc.aio

from lightning_sdk._proto.work_pb2 import FromRunner, FromWorker, ToRunner, ToWorker
from lightning_sdk._proto.work_pb2_grpc import WorkServicer
from lightning_sdk.collector.broker import Broker
from lightning_sdk.collector.status import abort_with
from lightning_sdk.collector.work_peers import Outbox, Timing
from lightning_sdk.errors import CollectorError, WireError

# What may wait for one peer to read it: all jobs that the broker sends at once, and results of a run that was away.
_MAX_WAITING_BYTES: Final = 96 << 20
_MAX_WAITING: Final = 16_384
# And for all of them together. Beyond that no more is read, until some of it has gone.
_MAX_ALL_WAITING_BYTES: Final = 256 << 20

_Peer = TypeVar("_Peer")


class WorkService(WorkServicer):
    """One reading task a stream, which tells the broker; the handler sends what the broker answers, in order."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._broker = Broker(timing)
        self._open: set[_Outbox] = set()
        self._draining = False
        self._load = _Load()
        self._expiring: asyncio.Task[None] | None = None

    async def Offer(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[FromRunner],
        context: grpc.aio.ServicerContext[FromRunner, ToRunner],
    ) -> AsyncIterator[ToRunner]:
        """See work.proto."""
        broker = self._broker

        def joins(message: FromRunner, out: Outbox) -> Any:
            return broker.runner_joins(message.hello, out)

        async for answer in self._converse(
            request_iterator, context, joins, broker.runner_says, broker.runner_left
        ):
            yield answer

    async def Take(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[FromWorker],
        context: grpc.aio.ServicerContext[FromWorker, ToWorker],
    ) -> AsyncIterator[ToWorker]:
        """See work.proto."""
        broker = self._broker

        def joins(message: FromWorker, out: Outbox) -> Any:
            return broker.worker_joins(message.hello, out)

        async for answer in self._converse(
            request_iterator, context, joins, broker.worker_says, broker.worker_left
        ):
            yield answer

    def start(self) -> None:
        """Begin to give up those that are silent."""
        self._expiring = asyncio.create_task(self._expire())

    def drain(self) -> None:
        """End each stream; its peer comes back to whoever listens here next."""
        self._draining = True
        if self._expiring is not None:
            self._expiring.cancel()
        for out in list(self._open):
            out.close("the collector is stopping")

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._timing.heartbeat_s)
            self._broker.expire()

    async def _converse(
        self,
        requests: AsyncIterator[Any],
        context: grpc.aio.ServicerContext[Any, Any],
        joins: Callable[[Any, Outbox], _Peer],
        says: Callable[[_Peer, Any], None],
        left: Callable[[_Peer, Outbox], None],
    ) -> AsyncIterator[Any]:
        out = _Outbox(self._load)

        async def read() -> None:
            peer: _Peer | None = None
            try:
                async for message in requests:
                    await self._load.room()
                    if out.closed:
                        return
                    if peer is not None:
                        says(peer, message)
                    elif message.WhichOneof("message") == "hello":
                        peer = joins(message, out)
                    else:
                        raise WireError("the first message of a stream of work is no hello")
            finally:
                if peer is not None:
                    left(peer, out)

        reader = asyncio.create_task(read())
        reader.add_done_callback(out.reader_ended)
        self._open.add(out)
        if self._draining:
            out.close("the collector is stopping")
        try:
            while (message := await out.get()) is not None:
                yield message
        except Exception as error:
            await abort_with(context, error)
        finally:
            self._open.discard(out)
            reader.cancel()
            out.close("it has ended")
            out.forget()  # also where it was closed before


class _Load:
    """How much waits for peers to read it, all together."""

    def __init__(self) -> None:
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._changed.set()

    def add(self, size_bytes: int) -> None:
        """More waits, or with a negative number less."""
        self._waiting_bytes += size_bytes
        if self._waiting_bytes > _MAX_ALL_WAITING_BYTES:
            self._changed.clear()
        else:
            self._changed.set()

    async def room(self) -> None:
        """Wait until there is room for another message."""
        await self._changed.wait()


class _Outbox:
    """See `Outbox`. A peer that does not read what waits for it is sent away; it may come back."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._messages: deque[tuple[Any, int]] = deque()
        self._waiting_bytes = 0
        self._ready = asyncio.Event()
        self._error: Exception | None = None
        self.closed = False

    def put(self, message: Any) -> None:
        """See `Outbox`."""
        if self.closed:
            return
        size_bytes = message.ByteSize()
        if self._waiting_bytes + size_bytes > _MAX_WAITING_BYTES or len(self._messages) >= _MAX_WAITING:
            self.close("it does not read what it is sent")
            return
        self._messages.append((message, size_bytes))
        self._count(size_bytes)
        self._ready.set()

    def close(self, reason: str) -> None:
        """See `Outbox`. What waits is not sent any more."""
        if not self.closed:
            self.forget()
        self._close(CollectorError(reason))

    def reader_ended(self, reader: asyncio.Task[None]) -> None:
        """Nothing more comes from the peer: send what it is owed, and end."""
        error = None if reader.cancelled() else reader.exception()
        self._close(error if isinstance(error, Exception) else None)

    async def get(self) -> Any:
        """The next message; None at the end.

        Raises:
            Exception: why the connection was closed.
        """
        while not self._messages:
            if self.closed:
                if self._error is not None:
                    raise self._error
                return None
            self._ready.clear()
            await self._ready.wait()
        message, size_bytes = self._messages.popleft()
        self._count(-size_bytes)
        return message

    def forget(self) -> None:
        """What was not sent never will be."""
        self._messages.clear()
        self._count(-self._waiting_bytes)

    def _close(self, error: Exception | None) -> None:
        if not self.closed:
            self.closed, self._error = True, error
            self._ready.set()

    def _count(self, size_bytes: int) -> None:
        self._waiting_bytes += size_bytes
        self._load.add(size_bytes)
