"""Real collectors for tests: in a thread of this process, or in a process of their own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc

from lightning_sdk._proto.ingest_pb2 import Ack, Batch, Frame, IngestRequest, Open
from lightning_sdk._proto.ingest_pb2_grpc import IngestStub
from lightning_sdk.collector.server import Collector
from lightning_sdk.collector.store.base import Store
from lightning_sdk.home import Home

_T = TypeVar("_T")

_RUN = """
import sys
from lightning_sdk.collector.server import run_collector
from lightning_sdk.errors import LightningError
from lightning_sdk.home import Home
try:
    home, port = Home.locate(sys.argv[1]), int(sys.argv[2])
    run_collector(home, port=port, on_ready=lambda address: print(address, flush=True))
except LightningError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@contextmanager
def collector_thread(store: Store, **options: Any) -> Iterator[str]:
    """A collector on a free port, in a thread of its own. Yields "host:port"."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="collector under test")
    thread.start()

    def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout=30)

    async def make() -> Collector:
        return Collector(store, port=0, **options)

    try:
        collector = run(make())
        port = run(collector.start())
        try:
            yield f"127.0.0.1:{port}"
        finally:
            run(collector.stop(grace_s=1.0))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def spawn_collector(home: Home, port: int = 0) -> subprocess.Popen[str]:
    """`run_collector` in a process of its own. Its first line of output is its endpoint."""
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, str(home.path), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def collector_process(home: Home) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """As `spawn_collector`. Yields process and "host:port"; it is dead when the block ends."""
    process = spawn_collector(home)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip().removeprefix("grpc://")
    finally:
        process.kill()
        process.communicate()


def announced(home: Home) -> dict[str, Any]:
    """What the collector of `home` tells of itself."""
    found: dict[str, Any] = json.loads(home.collector.read_text())
    return found


def open_request(producer: bytes) -> IngestRequest:
    return IngestRequest(open=Open(producer=producer))


def batch_request(producer: bytes, frames: list[Frame]) -> IngestRequest:
    return IngestRequest(batch=Batch(producer=producer, frames=frames))


def send(target: str, requests: list[IngestRequest], metadata: Any = ()) -> list[Ack]:
    """Send requests on one stream; the acks, once the collector has ended it.

    Raises:
        grpc.RpcError: the stream ended with another status than OK.
    """
    with grpc.insecure_channel(target) as channel:
        answers = IngestStub(channel).Stream(iter(requests), metadata=metadata, timeout=30)
        return [answer.ack for answer in answers]
