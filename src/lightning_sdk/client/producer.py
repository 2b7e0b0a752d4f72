"""One process's stream of records: what everything that records in this package writes to."""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import EncodeError

from lightning_sdk.client import faults
from lightning_sdk.client.forks import Hold, grpc_is_inherited, watch_forks
from lightning_sdk.client.sender import Sender
from lightning_sdk.client.spool import SEGMENT_BYTES, SpoolWriter
from lightning_sdk.errors import SpoolError
from lightning_sdk.ids import new_producer

if TYPE_CHECKING:
    from lightning_sdk.records import Record

_log = logging.getLogger("lightning_sdk")


class Producer:
    """Numbers, keeps and sends the records of this process. Safe in any thread and across forks.

    - When `write` has returned, the record survives the death of the process, and reaches the destination
      sooner or later: sent by this process, or by another one with the same spool and destination.
    - A forked child is a producer of its own: another `id`, numbers and ticks from 1. If gRPC was loaded
      before the fork the child only spools, and its parent sends.
    """

    def __init__(
        self,
        spool_dir: Path,
        *,
        destination: str = "",
        token: str | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Prepare; nothing is written, and no thread started, before the first `write`.

        Args:
            spool_dir: where the segments lie, until they are committed or adopted.
            destination: "grpc://host:port" of a collector, or "": kept for whoever reads the spool.
            token: for the collector.
            segment_bytes: a segment that would grow beyond this is left for a new one.

        Raises:
            ConfigError: destination or token cannot be used.
        """
        self._spool_dir = Path(spool_dir).absolute()
        self._destination = destination
        self._token = token
        self._segment_bytes = segment_bytes
        self._closed = False
        self._begin()
        watch_forks(self)
        if self._spool.spool_only:
            # No producer of our parent was there to be told of the fork.
            _log.warning(
                "this process was forked after gRPC was loaded, so it does not send: its records wait in %s for "
                "its parent, or any other process with this spool and endpoint, to record something",
                self._spool_dir,
            )

    @property
    def id(self) -> bytes:
        """16 bytes that no other producer has; others in a forked child."""
        return self._spool.producer

    @property
    def written(self) -> int:
        """Records on disk."""
        return self._spool.written

    @property
    def lost(self) -> int:
        """Records that could not be written."""
        return self._spool.lost

    @property
    def counters(self) -> Mapping[str, int]:
        """Troubles by name, where there were any.

        `lost` could not be written. The others tell of what was sent, adopted segments included: records
        `refused` by the collector, `damaged` or `too_large` (their places became tombstones); segments with
        `torn_tails` or `unreadable`; `spool_errors` and `sender_errors`, after which the sender tried again.
        """
        sent = self._sender.counters if self._sender is not None else {}
        return {**({"lost": self.lost} if self.lost else {}), **sent}

    def tick(self) -> int:
        """The next value of the causal clock: 1, 2, 3 and so on."""
        return next(self._clock)

    def write(self, record: Record) -> None:
        """Write a record. It is on disk when this returns.

        Raises:
            SpoolError: it cannot be written; it is counted in `lost`.
        """
        try:
            payload = record.SerializeToString()
        except EncodeError as error:
            raise SpoolError(f"a record cannot be serialized: {error}") from error
        self._spool.append(payload)
        if self._sender is not None:
            self._sender.wake()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything written so far is acknowledged by the destination.

        Args:
            timeout_s: how long at most; None waits without limit. At the end of the process it is never more
                than about five seconds.

        Returns:
            Whether it is. Without a destination: True, since it is on disk. In a child that only spools:
            False at once if it has written anything, since only its parent hears the answer.
        """
        if not self._destination:
            return True
        written = self._spool.written
        if self._sender is None:
            return written == 0
        return self._sender.flush(written, timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Flush, stop sending, and give up the segment. Idempotent; what is written afterwards is lost.

        Of children that only spool, what is in the spool by now is sent too.

        Args:
            timeout_s: how long to wait for the acknowledgement at most. Ending the connection of a collector
                that does not react may take a second more.

        Returns:
            As `flush`. What is not acknowledged stays in the spool for another process.
        """
        deadline = time.monotonic() + timeout_s
        flushed = self._closed or self._flush_all(timeout_s)
        self._closed = True
        stopped = self._sender is None or self._sender.stop(max(deadline - time.monotonic(), 1.0))
        self._spool.close()
        if self._sender is None:
            return flushed
        done = self._sender.committed >= self._spool.written
        if done and stopped:
            self._discard()
        return done

    def before_fork(self, hold: Hold) -> None:
        """Have no connection while the process forks."""
        if self._sender is not None:
            self._sender.before_fork(hold)

    def after_fork_in_parent(self) -> None:
        """A child that only spools depends on our sender, even if we write nothing ourselves."""
        if self._sender is not None and "grpc" in sys.modules and not self._closed:
            self._sender.wake()

    def after_fork_in_child(self) -> None:
        """Begin anew."""
        if self._sender is not None:
            self._sender.abandon()
        self._begin()

    def _flush_all(self, timeout_s: float) -> bool:
        if self._sender is None or not self._sender.is_started:
            return self.flush(timeout_s)
        return self._sender.flush(self._spool.written, timeout_s, children=True)

    def _begin(self) -> None:
        spool_only = bool(self._destination) and grpc_is_inherited()
        self._clock = itertools.count(1)
        self._spool = SpoolWriter(
            self._spool_dir,
            new_producer(),
            destination=self._destination,
            spool_only=spool_only,
            segment_bytes=self._segment_bytes,
        )
        self._sender: Sender | None = None
        if self._destination and not spool_only:
            self._sender = Sender(self._spool, self._token)
        if self._closed:
            self._spool.close()

    def _discard(self) -> None:
        try:
            for segment in self._spool.segments():
                self._spool.discard(segment)
        except SpoolError as error:
            faults.pass_on(error)
            # All is committed: whoever adopts what is left finds nothing new.
