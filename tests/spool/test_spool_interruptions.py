"""What a signal handler of the agent raises in the spool reaches the agent, an OSError too."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_sdk.client import forks
from lightning_sdk.client.producer import Producer
from lightning_sdk.client.segments import SegmentReader, list_segments
from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.errors import SpoolError
from support.ingest_server import IngestServer
from support.interruptions import TimedOut, swallowed_at
from support.spool_records import numbered


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SpoolWriter]:
    writer = SpoolWriter(tmp_path / "spool", b"p" * 16, segment_bytes=400)
    yield writer
    writer.close()


@pytest.fixture
def no_room() -> Iterator[Callable[[int], None]]:
    """Sets how large a file may become: a write beyond that is cut short, and then fails."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    signal.signal(signal.SIGXFSZ, ignored)


def numbers(spool: Path) -> list[int]:
    found = []
    for path in list_segments(spool):
        reader = SegmentReader(path)
        found += [frame.seq for frame in reader.read()]
        reader.close()
    return found


def places_that_swallow(work: Callable[[], object]) -> list[str]:
    work()
    places, swallowed = swallowed_at(work, TimedOut, ("call", "c_call"))
    assert places > 10
    return swallowed


def test_in_a_write_and_in_the_making_of_a_segment(writer: SpoolWriter) -> None:
    assert places_that_swallow(lambda: [writer.append(b"x" * 100) for _ in range(3)]) == []
    writer.append(b"end")
    assert numbers(writer.directory) == list(range(1, writer.written + 1))


def test_where_a_write_has_failed_and_is_undone(writer: SpoolWriter, no_room: Callable[[int], None]) -> None:
    def fail() -> None:
        no_room(300)
        try:
            writer.append(b"x" * 500)
        except SpoolError:
            pass
        finally:
            no_room(resource.RLIM_INFINITY)

    assert places_that_swallow(fail) == []
    writer.append(b"end")
    assert numbers(writer.directory) == list(range(1, writer.written + 1))


def test_in_the_write_of_what_was_put_off(writer: SpoolWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a finaliser that runs in the middle of a write."""
    write = os.write
    garbage: list[bytes] = []

    def write_and_finalise(fd: int, data: bytes) -> int:
        while garbage:
            writer.append(garbage.pop())
        return write(fd, data)

    def append() -> None:
        garbage[:] = [b"put off"] * 2
        writer.append(b"x" * 100)

    monkeypatch.setattr(os, "write", write_and_finalise)

    assert places_that_swallow(append) == []
    monkeypatch.undo()
    writer.append(b"end")
    assert numbers(writer.directory) == list(range(1, writer.written + 1))


def test_while_the_agent_waits_for_what_is_sent(tmp_path: Path) -> None:
    count = itertools.count(1)
    with IngestServer() as server:
        producer = Producer(tmp_path / "spool", destination=server.destination)

        def work() -> None:
            producer.write(numbered(next(count)))
            producer.flush(20)

        work()
        places, swallowed = swallowed_at(work, TimedOut)
        assert places > 10
        assert swallowed == []
        assert producer.close(20)


def test_an_opening_that_a_handler_interrupted_holds_no_other_thread_up_again_and_again(
    tmp_path: Path,
) -> None:
    """Waiting a second for each of these files would take longer than a test may."""

    def make(spool: Path) -> None:
        writer = SpoolWriter(spool, b"p" * 16, segment_bytes=100)
        for _ in range(200):
            writer.append(b"x" * 100)
        writer.close()

    # Held by this thread for ever, as it is where an exception comes just before it is given back.
    assert forks._opening.acquire(timeout=1)
    thread = threading.Thread(target=make, args=(tmp_path / "spool",))
    thread.start()
    thread.join()
    assert numbers(tmp_path / "spool") == list(range(1, 201))
