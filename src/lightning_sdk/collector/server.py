"""The collector: one port for our stream, OTLP, readers and the broker of work, in front of one store."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc.aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    add_TraceServiceServicer_to_server,
)

from lightning_sdk._proto.ingest_pb2_grpc import add_IngestServicer_to_server
from lightning_sdk._proto.read_pb2_grpc import add_ReadServicer_to_server
from lightning_sdk._proto.work_pb2_grpc import add_WorkServicer_to_server
from lightning_sdk.addresses import is_loopback, join_host_port, leads_to
from lightning_sdk.client.segments import MAX_MESSAGE_BYTES
from lightning_sdk.collector.address import Announcement, local_endpoint
from lightning_sdk.collector.adopt import Adopter
from lightning_sdk.collector.assembling import Assembling
from lightning_sdk.collector.auth import TokenInterceptor
from lightning_sdk.collector.committer import GroupCommitter
from lightning_sdk.collector.ingest import IngestService
from lightning_sdk.collector.otlp import TraceService
from lightning_sdk.collector.read_service import ReadService
from lightning_sdk.collector.store.base import Store
from lightning_sdk.collector.store.home import open_home_store
from lightning_sdk.collector.work_peers import Timing
from lightning_sdk.collector.work_service import WorkService
from lightning_sdk.errors import ConfigError, SpoolError, StoreError
from lightning_sdk.home import Home

DEFAULT_PORT: Final = 4319
_GRACE_S: Final = 10.0
_ADOPT_EVERY_S: Final = 2.0
# Each holds one message at the most before the committer counts it.
_MAX_RPCS: Final = 512

_log = logging.getLogger(__name__)


class Collector:
    """Listens, stores and serves, in the running event loop.

    Args:
        store: stays the caller's, who closes it after `stop`.
        host: an address or name; only one that no other machine can reach, unless there is a token.
        port: 0 takes a free one.
        token: what every RPC must carry as "Bearer …".
        spool: adopted at the start, every few seconds, and before every read.
        timing: of the leases that workers have.

    Raises:
        ConfigError: a host that others can reach, without a token; a token that cannot be sent.
    """

    def __init__(
        self,
        store: Store,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        token: str | None = None,
        spool: Path | None = None,
        timing: Timing | None = None,
    ) -> None:
        if not token and not is_loopback(host):
            raise ConfigError(
                f"host {host!r} lets other machines in, and there is no token: set LIGHTNING_TOKEN, "
                "or listen on 127.0.0.1"
            )
        self._store = store
        self._host = host
        self._port = port
        self._interceptors = [TokenInterceptor(token)] if token else []
        self._spool = spool
        self._timing = timing or Timing()
        self._adopter: Adopter | None = None
        self._adopting = asyncio.Lock()
        self._problems: set[str] = set()

    async def start(self) -> int:
        """Listen.

        Returns:
            The port.

        Raises:
            ConfigError: host or port cannot be listened on.
        """
        self._committer = GroupCommitter(self._store)
        self._ingest = IngestService(self._committer)
        traces = TraceService(self._committer)
        self._server = grpc.aio.server(
            interceptors=self._interceptors,
            options=[
                # Otherwise a second server on the same port would get part of the connections.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                # One message a rollout, and readers take any size.
                ("grpc.max_send_message_length", -1),
            ],
            maximum_concurrent_rpcs=_MAX_RPCS,
        )
        add_IngestServicer_to_server(self._ingest, self._server)  # type: ignore[no-untyped-call]
        add_TraceServiceServicer_to_server(traces, self._server)  # type: ignore[no-untyped-call]
        reads = ReadService(self._store, self._adopt, lambda: traces.counters)
        add_ReadServicer_to_server(reads, self._server)  # type: ignore[no-untyped-call]
        self._work = WorkService(self._timing)
        add_WorkServicer_to_server(self._work, self._server)  # type: ignore[no-untyped-call]
        try:
            port = self._bind()
            await self._server.start()
        except BaseException:
            await self._committer.close()
            raise
        if self._spool:
            self._adopter = Adopter(
                self._spool, self._store, is_ours=lambda owed_to: self._is_ours(owed_to, port)
            )
        self._work.start()
        self._adoption = asyncio.create_task(self._keep_adopting())
        self._assembling = Assembling(self._store, lambda: self._committer.busy)
        return port

    async def stop(self, grace_s: float = _GRACE_S) -> None:
        """Take nothing new; commit and acknowledge what was taken; close.

        Args:
            grace_s: how long acks may take to reach their senders, and running reads to end.
        """
        self._adoption.cancel()
        stopped = asyncio.create_task(self._server.stop(grace_s))
        self._ingest.drain()
        self._work.drain()
        await stopped
        await self._assembling.stop()
        await self._committer.close()
        async with self._adopting:
            if self._adopter:
                self._adopter.close()
                self._adopter = None

    def _is_ours(self, destination: str, port: int) -> bool:
        """Whether records with this destination end here: they have none, or this is it."""
        return not destination or leads_to(destination, self._host, port)

    def _bind(self) -> int:
        _check_bindable(self._host, self._port)
        try:
            return self._server.add_insecure_port(join_host_port(self._host, self._port))
        except RuntimeError as error:
            raise _cannot_listen(self._host, self._port, str(error)) from None

    async def _keep_adopting(self) -> None:
        while True:
            await self._adopt()
            await asyncio.sleep(_ADOPT_EVERY_S)

    async def _adopt(self) -> None:
        """One pass over the spool. What goes wrong there is told once and keeps nothing else from working."""
        # Shielded, since a pass in its thread goes on when whoever waits for it is cancelled: only the pass
        # itself may give up the lock that keeps the next one from starting.
        await asyncio.shield(asyncio.create_task(self._one_pass()))

    async def _one_pass(self) -> None:
        async with self._adopting:
            if self._adopter is None:
                return
            problems = await asyncio.to_thread(_adopt, self._adopter)
        for problem in set(problems) - self._problems:
            _log.warning("%s", problem)
        self._problems.update(problems)


def run_collector(
    home: Home,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    token: str | None = None,
    on_ready: Callable[[str], None],
) -> None:
    """Run a collector on the store of `home` until SIGTERM or SIGINT; then commit and acknowledge the rest.

    While it runs, `home.collector` tells its address and process. Call it in the main thread.

    Args:
        home: made where there is none.
        host: see `Collector`.
        port: see `Collector`.
        token: see `Collector`.
        on_ready: called with the endpoint, "grpc://host:port", once it listens.

    Raises:
        ConfigError: host or port cannot be listened on, or others could reach it without a token.
        StoreBusyError: another process owns the store.
        StoreError: the store cannot be opened.
    """
    store = open_home_store(home)
    try:
        asyncio.run(_serve(home, store, host, port, token, on_ready))
    finally:
        store.close()


async def _serve(
    home: Home, store: Store, host: str, port: int, token: str | None, on_ready: Callable[[str], None]
) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    collector = Collector(store, host=host, port=port, token=token, spool=home.spool)
    endpoint = local_endpoint(host, await collector.start())
    announcement = Announcement(endpoint, os.getpid())
    try:
        _announce(announcement, home.collector)
        on_ready(endpoint)
        await stop.wait()
    finally:
        announcement.withdraw(home.collector)
        await collector.stop()


def _announce(announcement: Announcement, path: Path) -> None:
    try:
        announcement.write(path)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written ({error.strerror}), so that no reader would find this collector: "
            "make room, or choose another directory with LIGHTNING_HOME"
        ) from None


def _adopt(adopter: Adopter) -> tuple[str, ...]:
    try:
        return adopter.adopt().problems
    except (SpoolError, StoreError) as error:
        return (str(error),)


def _check_bindable(host: str, port: int) -> None:
    """Try the address before gRPC does, which would not say what is wrong with it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # Connections of a collector that has just ended must not keep the next one from its port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise _cannot_listen(host, port, error.strerror or str(error)) from None


def _cannot_listen(host: str, port: int, cause: str) -> ConfigError:
    return ConfigError(
        f"cannot listen on {join_host_port(host, port)} ({cause}): stop what listens there, "
        "or choose another with --port or --host"
    )
