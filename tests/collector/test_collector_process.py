"""The collector as a process: starting, being found, being stopped and being killed.

1. It tells where it listens, and takes that back when it stops.
2. What is in the way (another owner, a taken port, an open host) is told in one sentence.
3. SIGTERM: what was taken is committed and acknowledged. SIGKILL: what was acknowledged is there, once.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from lightning_sdk._proto.ingest_pb2 import Frame, IngestRequest
from lightning_sdk._proto.ingest_pb2_grpc import IngestStub
from lightning_sdk.collector.server import Collector
from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.errors import ConfigError, StoreBusyError
from lightning_sdk.home import Home
from support.collectors import (
    announced,
    batch_request,
    collector_process,
    open_request,
    send,
    spawn_collector,
)
from support.frames import note_frame, producer_id, whole_rollout
from support.segments import write_segment
from support.stores import ALL
from support.waiting import wait_until

P = producer_id("p")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.locate(tmp_path / "home")


def test_it_tells_its_address_and_process_to_its_user_alone(home: Home) -> None:
    with collector_process(home) as (process, target):
        assert announced(home) == {"address": f"grpc://{target}", "pid": process.pid}
        assert stat.S_IMODE(home.collector.stat().st_mode) == 0o600
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert not home.collector.exists()


def test_it_owns_its_store(home: Home) -> None:
    with collector_process(home) as (process, _):
        with pytest.raises(StoreBusyError, match=f"in use by process {process.pid}"):
            SqliteStore(home.store)
        with spawn_collector(home) as second:
            _, error = second.communicate(timeout=20)
        assert second.returncode == 1
        assert error.startswith("StoreBusyError: ")
        assert error.count("\n") == 1
        assert announced(home)["pid"] == process.pid


def test_a_taken_port_is_one_sentence_that_names_the_option(home: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with spawn_collector(home, port) as process:
            _, error = process.communicate(timeout=20)
    assert process.returncode == 1
    assert error.startswith(f"ConfigError: cannot listen on 127.0.0.1:{port} (Address already in use)")
    assert "--port" in error
    assert error.count("\n") == 1
    assert not home.collector.exists()


def test_two_collectors_never_share_a_port(home: Home, tmp_path: Path) -> None:
    with collector_process(home) as (_, target):
        port = int(target.rpartition(":")[2])
        with spawn_collector(Home.locate(tmp_path / "other"), port) as second:
            _, error = second.communicate(timeout=20)
        assert "Address already in use" in error


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
async def test_a_host_that_others_can_reach_needs_a_token(host: str, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "traces.db")
    with pytest.raises(ConfigError, match="LIGHTNING_TOKEN"):
        Collector(store, host=host)
    store.close()


async def test_a_host_that_is_not_this_machine_is_one_sentence(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "traces.db")
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0 .*--host"):
        await Collector(store, host="192.0.2.1", port=0, token="secret").start()
    store.close()


def test_sigterm_commits_and_acknowledges_what_was_taken(home: Home) -> None:
    requests: queue.Queue[IngestRequest | None] = queue.Queue()
    with collector_process(home) as (process, target), grpc.insecure_channel(target) as channel:
        answers = IngestStub(channel).Stream(iter(requests.get, None), timeout=60)
        requests.put(open_request(P))
        assert next(answers).ack.committed_through == 0
        for first in range(1, 1001, 50):
            requests.put(batch_request(P, [note_frame(seq) for seq in range(first, first + 50)]))
        assert next(answers).ack.committed_through == 50
        process.terminate()
        acked, status = 50, None
        try:
            for answer in answers:
                acked = answer.ack.committed_through
        except grpc.RpcError as error:
            status = error.code()
        requests.put(None)
        assert status is grpc.StatusCode.UNAVAILABLE
        assert process.wait(20) == 0
    store = SqliteStore(home.store)
    # Everything that was taken was acknowledged: nothing more is stored than the sender knows of.
    assert store.high_water(P) == acked
    store.close()


def test_a_sender_that_says_nothing_does_not_keep_it_from_stopping(home: Home) -> None:
    requests: queue.Queue[IngestRequest | None] = queue.Queue()
    with collector_process(home) as (process, target), grpc.insecure_channel(target) as channel:
        answers = IngestStub(channel).Stream(iter(requests.get, None))
        requests.put(open_request(P))
        next(answers)
        process.terminate()
        assert process.wait(20) == 0
        requests.put(None)


def _send_until_killed(target: str, frames: list[Frame], kill_after: int, pid: int) -> int:
    """Send batches of 20; kill the collector when so many are acked. The last number that was acked."""
    acked = 0

    def requests() -> Iterator[IngestRequest]:
        yield open_request(P)
        for first in range(0, len(frames), 20):
            yield batch_request(P, frames[first : first + 20])

    with grpc.insecure_channel(target) as channel:
        answers = IngestStub(channel).Stream(requests(), timeout=60)
        try:
            for answer in answers:
                acked = answer.ack.committed_through
                if acked >= kill_after:
                    os.kill(pid, signal.SIGKILL)
        except grpc.RpcError:
            return acked
    raise AssertionError("the stream outlived its collector")


def test_kill_9_loses_nothing_that_was_acked_and_doubles_nothing(home: Home) -> None:
    rng = random.Random(11)
    frames = [note_frame(seq, b'{"x": "' + b"y" * 500 + b'"}') for seq in range(1, 12_001)]
    for _ in range(3):
        with collector_process(home) as (process, target):
            (ack,) = send(target, [open_request(P)])
            resume = ack.committed_through
            acked = _send_until_killed(target, frames[resume:], resume + rng.randrange(1, 1500), process.pid)
            assert process.wait(20) == -signal.SIGKILL
        store = SqliteStore(home.store)
        stored = store.high_water(P)
        assert stored >= acked > resume
        assert store.stats().counters["records"] == stored
        store.close()
    with collector_process(home) as (_, target):
        # As a sender whose acks were lost: everything again, from the very beginning.
        acks = send(
            target, [batch_request(P, frames[first : first + 1000]) for first in range(0, 12_000, 1000)]
        )
        assert acks[-1].committed_through == 12_000
    store = SqliteStore(home.store)
    counters = store.stats().counters
    assert counters["records"] == 12_000
    assert (counters["integrity_errors"], counters["tombstones"]) == (0, 0)
    store.close()


def test_it_adopts_the_spool_of_its_home(home: Home) -> None:
    telling = whole_rollout("a")
    write_segment(home.spool, telling.producer, telling.frames)
    with collector_process(home) as (process, _):
        wait_until(lambda: not list(home.spool.glob("*.seg")))
        process.terminate()
        assert process.wait(20) == 0
    store = SqliteStore(home.store)
    assert [summary.complete for summary in store.list_rollouts(ALL)] == [True]
    store.close()


def test_it_adopts_what_was_addressed_to_it_while_it_was_away(home: Home) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    telling, stranger = whole_rollout("a"), whole_rollout("b")
    write_segment(home.spool, telling.producer, telling.frames, destination=f"grpc://localhost:{port}")
    other = write_segment(home.spool, stranger.producer, stranger.frames, destination="grpc://localhost:1")
    process = spawn_collector(home, port)
    try:
        wait_until(lambda: list(home.spool.glob("*.seg")) == [other])
    finally:
        process.terminate()
        process.communicate()
