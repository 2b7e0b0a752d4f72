"""A garbage collection may run at any line of ours and finalise what the agent left: its record is written there.

Whoever writes holds a lock of his own (the client's journal does), so that two orders of locks meet.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lightning_sdk.client import forks, sender, wakeup
from lightning_sdk.client.producer import Producer
from lightning_sdk.client.wakeup import Wakeup
from support.ingest_server import IngestServer
from support.spool_records import numbered

CLIENT = str(Path(sender.__file__).parent)


@pytest.fixture
def server() -> Iterator[IngestServer]:
    with IngestServer() as server:
        yield server


class AtEveryLine:
    """Runs something once at each line of these files, in the thread that is there."""

    def __init__(self, action: Callable[[], None], *prefixes: str) -> None:
        self.seen: set[tuple[str, int]] = set()
        self._action = action
        self._prefixes = prefixes
        self._inside = threading.local()
        self._spared = threading.local()

    def spare_this_thread(self) -> None:
        self._spared.spared = True

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if hasattr(self._spared, "spared"):
            return None
        if getattr(self._inside, "busy", False) or not name.startswith(self._prefixes):
            return None
        line = (name, frame.f_lineno)
        if event == "line" and line not in self.seen:
            self.seen.add(line)
            self._inside.busy = True
            try:
                self._action()
            finally:
                self._inside.busy = False
        return self.trace


def test_a_wakeup_may_be_set_at_any_line_of_waiting_for_it() -> None:
    signal = Wakeup()
    lines = AtEveryLine(signal.set, wakeup.__file__)
    results: list[bool] = []

    def use() -> None:
        sys.settrace(lines.trace)
        try:
            for _ in range(3):
                results.append(signal.wait(0.01))
                signal.set()
                results.append(signal.wait(0.01))
                signal.clear()
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for itself"
    assert len(lines.seen) > 10
    assert results[-1]


def test_a_wakeup_wakes_everybody_who_waits_until_it_is_cleared() -> None:
    signal = Wakeup()
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(signal.wait(20))) for _ in range(3)]
    for thread in threads:
        thread.start()
    signal.set()
    signal.set()
    for thread in threads:
        thread.join(20)
    assert woken == [True] * 3
    assert signal.is_set()
    assert signal.wait(0)
    signal.clear()
    assert not signal.wait(0)


def test_a_record_may_be_written_at_any_line_of_the_sender_while_others_write(
    tmp_path: Path, server: IngestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_UNDIVIDED_WAIT_S", 0.05)
    spool = tmp_path / "spool"
    producer = Producer(spool, destination=server.destination, segment_bytes=1000)
    journal = threading.Lock()
    over = threading.Event()

    def write() -> None:
        if not over.is_set():
            with journal:
                producer.write(numbered(1, size=100))

    def write_on() -> None:
        lines.spare_this_thread()
        while not over.wait(0.003):
            write()

    def write_late() -> None:
        time.sleep(0.005)  # so that an agent has the journal, and waits for what we hold
        write()

    lines = AtEveryLine(write_late, CLIENT)
    monkeypatch.setattr(threading, "_trace_hook", lines.trace)  # of the sender's thread and gRPC's
    write()
    agents = [threading.Thread(target=write_on, daemon=True) for _ in range(2)]
    for agent in agents:
        agent.start()
    lately = 0
    while len(lines.seen) > lately or lately < 100:
        lately = len(lines.seen)
        before = producer.written
        assert server.wait_until(lambda before=before: server.count() >= before + 20), (
            "something waits for ever"
        )
    over.set()
    for agent in agents:
        agent.join(20)
        assert not agent.is_alive()
    assert producer.close(20)
    assert len(server.records(producer.id)) == producer.written
    assert server.seen["conflicts"] == server.seen["gaps"] == 0
