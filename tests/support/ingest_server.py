"""A collector in memory, on a real port, that fails on demand: for tests of whatever sends records."""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from lightning_sdk._proto.ingest_pb2 import Ack, Frame, IngestRequest, IngestResponse, Refusal
from lightning_sdk._proto.ingest_pb2_grpc import IngestServicer, add_IngestServicer_to_server
from lightning_sdk.records import Record


@dataclass
class Faults:
    """What goes wrong. May be changed while the server runs."""

    # The stream breaks after so many more batches, before the one that breaks it is stored ...
    batches_before_drop: int | None = None
    # ... or after it is stored, so that its acknowledgement is lost.
    drop_after_commit: bool = False
    # Cleared: nothing is stored and nothing acknowledged until it is set again.
    running: threading.Event = field(default_factory=threading.Event)
    # Why a record is refused; None takes it.
    refuse: Callable[[Record], str | None] = lambda record: None
    # Only this bearer token is let in.
    token: str | None = None


class IngestServer:
    """Keeps each producer's records by number, as the real one does; survives `stop` and `start`."""

    def __init__(self, *, max_message_bytes: int = -1) -> None:
        self.faults = Faults()
        self.faults.running.set()
        self.frames: dict[bytes, dict[int, Frame]] = {}
        self.refused: dict[bytes, dict[int, str]] = {}
        # Connections, refused connections, frames that came again, conflicting ones, gaps.
        self.seen: Counter[str] = Counter()
        self.largest_batch_frames = 0
        self.port = 0
        self.changed = threading.Condition()
        self._max_message_bytes = max_message_bytes
        self._server: grpc.Server | None = None

    @property
    def destination(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def __enter__(self) -> IngestServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen: on a free port at first, later on the same one again."""
        options = [("grpc.max_receive_message_length", self._max_message_bytes), ("grpc.so_reuseport", 0)]
        if self._max_message_bytes == 0:
            options = options[1:]
        self._server = grpc.server(ThreadPoolExecutor(16), options=options)
        add_IngestServicer_to_server(_Servicer(self), self._server)
        deadline = time.monotonic() + 10
        while True:
            try:
                self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
                break
            except RuntimeError:  # the port of the stopped server is not free yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self._server.start()

    def stop(self) -> None:
        """Break every connection and stop listening."""
        if self._server is not None:
            self.faults.running.set()
            self._server.stop(None).wait()
            self._server = None

    def records(self, producer: bytes) -> list[Record]:
        """A producer's records in order; those lost or refused are left out."""
        with self.changed:
            frames = dict(self.frames.get(producer, {}))
            refused = self.refused.get(producer, {})
        kept = [frames[seq] for seq in sorted(frames) if not frames[seq].lost_reason and seq not in refused]
        return [Record.FromString(frame.record) for frame in kept]

    def lost(self, producer: bytes) -> dict[int, str]:
        """Why records were lost before they could be sent, by number."""
        with self.changed:
            frames = self.frames.get(producer, {})
            return {seq: frame.lost_reason for seq, frame in frames.items() if frame.lost_reason}

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 20) -> bool:
        """Wait for a state of what is stored. False if it did not come."""
        with self.changed:
            return self.changed.wait_for(condition, timeout_s)

    def count(self) -> int:
        """Numbers stored, over all producers."""
        with self.changed:
            return sum(len(frames) for frames in self.frames.values())


class _Servicer(IngestServicer):  # type: ignore[misc]
    def __init__(self, server: IngestServer) -> None:
        self._server = server

    def Stream(  # type: ignore[no-untyped-def]
        self, request_iterator: Iterator[IngestRequest], context
    ) -> Iterator[IngestResponse]:
        server, faults = self._server, self._server.faults
        with server.changed:
            server.seen["connections"] += 1
        metadata = dict(context.invocation_metadata())
        if faults.token is not None and metadata.get("authorization") != f"Bearer {faults.token}":
            with server.changed:
                server.seen["unauthenticated"] += 1
                server.changed.notify_all()
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong or missing token")
        for request in request_iterator:
            faults.running.wait()
            if not context.is_active():
                return
            if request.WhichOneof("message") == "open":
                producer = request.open.producer
                yield IngestResponse(ack=Ack(producer=producer, committed_through=self._high_water(producer)))
                continue
            drop = self._is_last_before_drop()
            if drop and not faults.drop_after_commit:
                context.abort(grpc.StatusCode.UNAVAILABLE, "dropped before the commit")
            ack = self._store(request.batch.producer, request.batch.frames)
            if drop:
                context.abort(grpc.StatusCode.UNAVAILABLE, "dropped after the commit")
            yield IngestResponse(ack=ack)

    def _is_last_before_drop(self) -> bool:
        faults = self._server.faults
        if faults.batches_before_drop is None:
            return False
        if faults.batches_before_drop == 0:
            faults.batches_before_drop = None
            return True
        faults.batches_before_drop -= 1
        return False

    def _high_water(self, producer: bytes) -> int:
        with self._server.changed:
            return len(self._server.frames.setdefault(producer, {}))

    def _store(self, producer: bytes, frames: list[Frame]) -> Ack:
        server = self._server
        with server.changed:
            stored = server.frames.setdefault(producer, {})
            refusals = []
            server.largest_batch_frames = max(server.largest_batch_frames, len(frames))
            for frame in frames:
                assert frame.lost_reason or zlib.crc32(frame.record) == frame.checksum
                if frame.seq in stored:
                    same = stored[frame.seq] == frame
                    server.seen["again" if same else "conflicts"] += 1
                    continue
                if frame.seq != len(stored) + 1:
                    server.seen["gaps"] += 1
                    continue
                stored[frame.seq] = frame
                reason = None if frame.lost_reason else server.faults.refuse(Record.FromString(frame.record))
                if reason is not None:
                    server.refused.setdefault(producer, {})[frame.seq] = reason
                    refusals.append(Refusal(seq=frame.seq, reason=reason))
            server.changed.notify_all()
            return Ack(producer=producer, committed_through=len(stored), refusals=refusals)
