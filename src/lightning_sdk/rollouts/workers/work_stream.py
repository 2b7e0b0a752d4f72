"""A connection to the broker in the collector that comes back whenever it breaks: both sides, runner and worker."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from lightning_sdk._proto.work_pb2_grpc import WorkStub
from lightning_sdk.addresses import bearer, grpc_target, is_loopback
from lightning_sdk.errors import CollectorError

_FIRST_PAUSE_S: Final = 0.2
# The longest pause before another try, unless the broker's expiry asks for less.
_LONGEST_PAUSE_S: Final = 4.0
# Until the broker has said what it wants.
_HEARTBEAT_S: Final = 2.0
_EXPIRY_S: Final = 15.0
# How long a last message has to leave.
_CLOSE_TIMEOUT_S: Final = 3.0
# Trying again does not help.
_FATAL: Final = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)


class WorkStream:
    """Keeps one bidirectional stream open, in threads of its own.

    `lock` guards the owner's state: `hello`, `beat` and `send` are called with it held, so that a hello and what is
    sent after it make one story.
    """

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        method: Callable[[WorkStub], Any],
        *,
        lock: threading.RLock,
        hello: Callable[[], list[Any]],
        beat: Callable[[], list[Any]],
        receive: Callable[[Any], None],
    ) -> None:
        """Prepare; nothing is connected.

        Args:
            endpoint: of the collector.
            token: the collector's.
            method: the RPC of a stub.
            lock: see above.
            hello: the first messages of a connection.
            beat: what is said every heartbeat.
            receive: called with each message of the broker but its heartbeats and welcomes, by the stream's thread.

        Raises:
            ConfigError: endpoint or token are none.
        """
        self.endpoint = endpoint
        self._target = grpc_target(endpoint)
        self._metadata = bearer(token)
        self._method = method
        self._lock = lock
        self._hello = hello
        self._beat = beat
        self._receive = receive
        self._outgoing: queue.SimpleQueue[Any] | None = None
        self._heartbeat_s, self._expiry_s = _HEARTBEAT_S, _EXPIRY_S
        self._heard_s = 0.0
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._welcomes = 0
        self._call: Any = None
        self._thread = threading.Thread(target=self._keep, name="lightning-work", daemon=True)
        # Why there is no connection now, and why there will be none.
        self.problem: str | None = None
        self.error: CollectorError | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def send(self, message: Any) -> None:
        """Say something, if there is a connection. The lock is held."""
        if self._outgoing is not None:
            self._outgoing.put(message)

    def wait_welcome(self, timeout_s: float) -> bool:
        """Wait until there was a connection, or there will be none. False: the time was up first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._welcomes > 0 or self.error is not None, timeout_s)

    @property
    def connected(self) -> bool:
        """Whether the broker has answered on the present connection."""
        return self.problem is None and self._welcomes > 0

    def close(self, last: Any) -> None:
        """Say a last thing and end. Idempotent."""
        with self._lock:
            if self._outgoing is not None and not self._closing.is_set():
                self._outgoing.put(last)
                self._outgoing.put(None)
            self._closing.set()
        if self._thread.ident is None:
            return
        self._thread.join(_CLOSE_TIMEOUT_S)
        call = self._call
        if call is not None:
            call.cancel()
        self._thread.join()

    def _keep(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            welcomes = self._welcomes
            self._connect()
            if self.error is not None:
                return
            if self._welcomes != welcomes:
                pause_s = _FIRST_PAUSE_S
            self._closing.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - so that not all come at once
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S, self._expiry_s / 4)

    def _connect(self) -> None:
        """One connection, from its beginning to its end."""
        channel = grpc.insecure_channel(self._target, options=_channel_options(self._target))
        outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        try:
            with self._lock:
                if self._closing.is_set():
                    return
                for message in self._hello():
                    outgoing.put(message)
                self._outgoing = outgoing
            self._heard_s = time.monotonic()
            self._call = self._method(WorkStub(channel))(  # type: ignore[no-untyped-call]
                self._requests(outgoing), metadata=self._metadata
            )
            for message in self._call:
                self._heard_s = time.monotonic()
                self._take(message)
            self._over("the collector has ended the connection")
        except grpc.RpcError as error:
            self._judge(error)
        finally:
            with self._lock:
                self._outgoing = None
            outgoing.put(None)
            channel.close()

    def _take(self, message: Any) -> None:
        kind = message.WhichOneof("message")
        if kind == "welcome":
            self._heartbeat_s = max(message.welcome.heartbeat_ms, 10) / 1000
            self._expiry_s = max(message.welcome.expiry_ms, 10) / 1000
            with self._changed:
                self.problem = None
                self._welcomes += 1
                self._changed.notify_all()
        elif kind is not None and kind != "heartbeat":
            self._receive(message)

    def _judge(self, error: grpc.RpcError) -> None:
        code, text = error.code(), error.details() or ""
        if code not in _FATAL:
            self._over(text or code.name)
            return
        if code is grpc.StatusCode.UNIMPLEMENTED:
            text = f"what listens at {self.endpoint} has no remote workers: start a collector of this version"
        with self._changed:
            self.error = CollectorError(text)
            self._changed.notify_all()

    def _over(self, why: str) -> None:
        with self._changed:
            self.problem = why

    def _requests(self, outgoing: queue.SimpleQueue[Any]) -> Iterator[Any]:
        """What is sent on one connection, read by a thread of gRPC's."""
        next_beat_s = time.monotonic() + self._heartbeat_s
        while True:
            now_s = time.monotonic()
            next_beat_s = min(next_beat_s, now_s + self._heartbeat_s)
            if now_s < next_beat_s:
                try:
                    message = outgoing.get(timeout=next_beat_s - now_s)
                except queue.Empty:
                    continue
                if message is None:
                    return
                yield message
                continue
            next_beat_s = now_s + self._heartbeat_s
            if now_s - self._heard_s > self._expiry_s and self._call is not None:
                # The broker answers every heartbeat: it is gone, and the network does not say so.
                self._call.cancel()
                return
            with self._lock:
                beats = self._beat()
            yield from beats


def _channel_options(target: str) -> list[tuple[str, int]]:
    options = [
        # The back-off is ours; a channel that shared one with an earlier channel would add its own.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
    if is_loopback(target.rpartition(":")[0].strip("[]")):
        options.append(("grpc.enable_http_proxy", 0))
    return options
