"""The thread that streams a spool to its collector: one for a producer with a destination.

gRPC is loaded in that thread, and no object of gRPC is ever kept anywhere but in the frames of that thread
and of gRPC's own. In a forked child those threads are gone and their frames are never unwound, so that the
child cannot run as much as a destructor of gRPC. And while the process forks there is no connection: gRPC, whose
own fork handlers start threads in the child, then leaves it nothing that a thread of the parent was waiting on.
"""

from __future__ import annotations

import logging
import math
import os
import random
import re
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lightning_sdk.addresses import bearer, grpc_target, is_loopback
from lightning_sdk.client import exits, faults
from lightning_sdk.client.forks import Hold, undivided_import
from lightning_sdk.client.segments import MAX_MESSAGE_BYTES
from lightning_sdk.client.sources import BATCH_BYTES
from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.client.stream import SCAN_INTERVAL_S, Backlog, Stream
from lightning_sdk.client.wakeup import Wakeup
from lightning_sdk.errors import SpoolError

if TYPE_CHECKING:
    import grpc

_FIRST_RETRY_S: Final = 0.2
_LAST_RETRY_S: Final = 30.0
_UNAUTHORISED: Final = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_UNAUTHORISED_RETRY_S: Final = 60.0
# While somebody waits in `flush`.
_FLUSH_RETRY_S: Final = 0.5
# How many tries in a row may fail before the end of the process is held up no longer.
_EXIT_TRIES: Final = 2
# How long a fork waits for the connection to end.
_FORK_WAIT_S: Final = 1.0
# How long the stream may take to end by itself before it is cancelled.
_STOP_GRACE_S: Final = 1.0
# gRPC does not take our word for what is too large; this is how it says it.
_TOO_LARGE: Final = re.compile(r"larger than max \(\d+ vs\.? (\d+)\)")

_log = logging.getLogger("lightning_sdk")


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a connection ended: a gRPC status, and whether anything was committed through it."""

    status: str
    details: str
    progressed: bool


class Sender:
    """Sends what lies in the spool, and what other processes left there, for as long as the process lives.

    The thread is started by the first `wake`. It never raises, never holds up whoever writes, and gives up
    only by `stop`: a collector that is away, slow, or refuses the token is tried again and again.
    """

    def __init__(self, spool: SpoolWriter, token: str | None = None) -> None:
        """Prepare to send.

        Args:
            spool: the producer's own writer, with a destination.
            token: sent with every connection; never logged.

        Raises:
            ConfigError: destination or token cannot be used.
        """
        self._spool = spool
        self._target = grpc_target(spool.destination)
        self._metadata = bearer(token)
        self._backlog = Backlog(spool)
        self._wake = Wakeup()
        self._retry_now = Wakeup()
        self._stopping = Wakeup()
        # Taken by whoever starts the thread, and never given back.
        self._start_right = threading.Lock()
        self._thread: threading.Thread | None = None
        self._call: weakref.ref[Any] | None = None
        # Held by the thread as long as it has a connection, and by whoever forks. Reentrant, because a
        # finaliser may fork in the thread itself.
        self._connection = threading.RLock()
        # The threads that are about to fork, and whether one of them has ended the connection.
        self._forking: list[int] = []
        self._cut = False
        self._flushing = 0
        # Tries since the last success.
        self._failures = 0
        self._unreachable = False
        exits.watch_exit(self)

    @property
    def committed(self) -> int:
        """The producer's own records up to here are committed."""
        return self._backlog.own.committed

    @property
    def is_started(self) -> bool:
        """Whether there was anything to send yet."""
        return self._thread is not None

    @property
    def counters(self) -> Counter[str]:
        """Losses and troubles by name, so far."""
        return Counter(self._backlog.counters)

    def wake(self) -> None:
        """There is something new in the spool. Cheap."""
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self._start()

    def flush(self, through: int, timeout_s: float | None = None, *, children: bool = False) -> bool:
        """Wait until the own records up to number `through` are committed.

        While the process ends this waits no longer than `exits` allows, nor for a collector that cannot be
        reached.

        Args:
            through: that number.
            timeout_s: how long to wait at most; None waits without limit.
            children: wait also for what children left that only spool.

        Returns:
            Whether the own records are.
        """
        began = time.monotonic()
        limit_s = min(math.inf if timeout_s is None else timeout_s, exits.allowance_s())
        changed = self._backlog.changed
        with changed:
            self._flushing += 1
        try:
            if children:
                with changed:
                    self._backlog.refresh(now=True)
            self.wake()
            self._retry_now.set()
            self._wait_until_committed(through, began + limit_s, children)
        except SpoolError as error:
            faults.pass_on(error)
            self._count("spool_errors", f"the spool cannot be sent: {error}")
        finally:
            with changed:
                self._flushing -= 1
            exits.spend(time.monotonic() - began)
        return self.committed >= through

    def drain(self, timeout_s: float) -> None:
        """Send what waits, at the end of the process. See `exits.Ending`."""
        if self.is_started:
            self.flush(self._spool.written, timeout_s, children=True)

    def _wait_until_committed(self, through: int, deadline: float, children: bool) -> None:
        changed = self._backlog.changed
        with changed:
            failures = self._failures
            while self.committed < through or (children and self._backlog.owes_children()):
                rest_s = deadline - time.monotonic()
                tried_enough = exits.has_begun() and self._failures - failures >= _EXIT_TRIES
                if rest_s <= 0 or tried_enough or not self._is_running():
                    return
                changed.wait(min(rest_s, 1.0))

    def stop(self, timeout_s: float) -> bool:
        """End the thread; what is not committed stays in the spool. Idempotent.

        Returns:
            Whether it has ended.
        """
        self._stopping.set()
        self._wake.set()
        self._retry_now.set()
        with self._backlog.changed:
            self._backlog.changed.notify_all()
        thread = self._thread
        if thread is None or not thread.is_alive() or thread is threading.current_thread():
            return True
        thread.join(min(timeout_s, _STOP_GRACE_S))
        call = self._call() if self._call is not None else None
        if thread.is_alive() and call is not None:
            call.cancel()
        thread.join(max(timeout_s - _STOP_GRACE_S, 0.1))
        return not thread.is_alive()

    def before_fork(self, hold: Hold) -> None:
        """End the connection, and keep it from being made again before the fork is over."""
        if exits.has_begun():  # it might be the last one that can be made
            return
        forking = self._forking
        forking.append(threading.get_ident())
        try:
            self._cut = True
            call = self._call() if self._call is not None else None
            if call is not None:
                call.cancel()
                del call
            hold(self._connection, _FORK_WAIT_S)
        finally:
            forking.pop()

    def abandon(self) -> None:
        """Forget the thread and its connection: this is a forked child, where they do not exist."""
        self._call = None
        exits.forget(self)

    def _is_running(self) -> bool:
        thread = self._thread
        ended = thread is not None and thread.ident is not None and not thread.is_alive()
        return not ended and not self._stopping.is_set()

    def _start(self) -> None:
        # A finaliser may come here at any line, and must not wait for its own thread.
        if self._stopping.is_set() or not self._start_right.acquire(blocking=False):
            return
        self._thread = threading.Thread(target=self._run, name="lightning-sender", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads, or the process is ending
            self._stopping.set()
            _log.warning("records stay in the spool: the sender cannot be started: %s", error)

    def _run(self) -> None:
        delay_s = _FIRST_RETRY_S
        while not self._stopping.is_set():
            ending = None
            try:
                if self._has_work():
                    self._cut = False
                    with self._connection:
                        ending = self._converse()
            except SpoolError as error:
                self._count("spool_errors", f"the spool cannot be sent: {error}")
            except Exception as error:
                if exits.has_begun() and isinstance(error, RuntimeError):
                    # No thread can be started any more, which gRPC does for a connection.
                    self._stopping.set()
                    _log.info("records stay in the spool: the process ends (%s)", error)
                    return
                self._count("sender_errors", f"the sender failed: {type(error).__name__}: {error}")
                if os.environ.get("LIGHTNING_STRICT") == "1":
                    raise
            finally:
                self._backlog.disconnected()
            if not self._stopping.is_set() and not self._cut:
                delay_s = self._wait_after(ending, delay_s)

    def _has_work(self) -> bool:
        """Wait until there is something to send; False when it is time to stop."""
        while not self._stopping.is_set():
            self._wake.clear()
            if self._backlog.pending():
                return True
            self._wake.wait(SCAN_INTERVAL_S)
        return False

    def _wait_after(self, ending: _Ending | None, delay_s: float) -> float:
        """Wait before the next try. Returns the delay after that one, if it fails too."""
        if ending is not None:
            self._report(ending)
            if ending.progressed:
                delay_s = _FIRST_RETRY_S
        with self._backlog.changed:
            refused = ending is not None and ending.status in _UNAUTHORISED
            if ending is not None and ending.progressed:
                self._failures = 0
            self._failures += _EXIT_TRIES if refused else 1
            self._backlog.changed.notify_all()
        wait_s = delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
        if refused:
            wait_s = _UNAUTHORISED_RETRY_S
        elif self._flushing:
            wait_s = min(wait_s, _FLUSH_RETRY_S)
        self._retry_now.wait(wait_s)
        self._retry_now.clear()
        return min(delay_s * 2, _LAST_RETRY_S)

    def _converse(self) -> _Ending | None:
        """Connect, and send until the connection ends. None: it was not made, because of a fork."""
        if self._forking:
            self._cut = True
            return None
        # Not to be cut in two by a fork: the child could never import it again.
        with undivided_import():
            import grpc

            from lightning_sdk._proto.ingest_pb2_grpc import IngestStub

        stream = Stream(self._backlog, self._wake, self._stopping)
        channel = grpc.insecure_channel(self._target, options=_channel_options(self._target))
        try:
            call = IngestStub(channel).Stream(  # type: ignore[no-untyped-call]
                stream.requests(), metadata=self._metadata
            )
            self._call = weakref.ref(call)
            if self._forking:  # whoever it is may have looked for the call before it was there
                self._cut = True
                call.cancel()
            for response in call:
                stream.acknowledged(response.ack)
                self._reached()
            ending = _Ending("OK", "the collector ended the stream", stream.progressed)
        except grpc.RpcError as error:
            ending = _ending(error, stream.progressed)
        finally:
            stream.end()
            channel.close()
        if stream.failure is not None:
            raise stream.failure
        return ending

    def _reached(self) -> None:
        if self._unreachable:
            self._unreachable = False
            _log.info("the collector at %s is reached again", self._target)

    def _report(self, ending: _Ending) -> None:
        """Say once what is wrong; learn from it where that is possible."""
        if ending.status == "RESOURCE_EXHAUSTED" and self._learn_limit(ending.details):
            return
        if ending.status == "OK" or self._unreachable:
            return
        self._unreachable = True
        mend = "is it running? (lsdk collect)"
        if ending.status in _UNAUTHORISED:
            mend = "set LIGHTNING_TOKEN, or init(token=...), to the token that it was started with"
        _log.warning(
            "records stay in the spool %s: the collector at %s answered %s (%s): %s",
            self._spool.directory,
            self._target,
            ending.status,
            ending.details,
            mend,
        )

    def _learn_limit(self, details: str) -> bool:
        """Take over the collector's limit on a message. One below a batch is a fault to be mended there."""
        match = _TOO_LARGE.search(details)
        if match is None or not BATCH_BYTES * 2 <= int(match[1]) < self._backlog.message_bytes:
            return False
        self._backlog.message_bytes = int(match[1])
        return True

    def _count(self, name: str, what: str) -> None:
        counters = self._backlog.counters
        counters[name] += 1
        if counters[name] == 1:
            _log.warning("%s (further cases are counted, not logged)", what, exc_info=name == "sender_errors")


def _channel_options(target: str) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # The back-off is ours; a channel that shared one with an earlier channel would add its own.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
    if is_loopback(target.rpartition(":")[0].strip("[]")):
        options.append(("grpc.enable_http_proxy", 0))
    return options


def _ending(error: grpc.RpcError, progressed: bool) -> _Ending:
    # Every error of a call is the call itself, which has these two.
    call: Any = error
    return _Ending(call.code().name, call.details() or "", progressed)
