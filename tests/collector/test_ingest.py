"""The ingest stream, over a real connection.

1. A stream is answered in order: an ack a message, after the commit.
2. What makes no sense ends that stream with a status that says why, and no other.
3. Memory is bounded: who is not served waits.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from lightning_sdk._proto.ingest_pb2 import Ack, Frame, IngestRequest
from lightning_sdk._proto.ingest_pb2_grpc import IngestStub
from lightning_sdk.collector.committer import GroupCommitter
from lightning_sdk.collector.store.base import Batch
from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.errors import CollectorError
from support.collectors import batch_request, collector_thread, open_request, send
from support.frames import Telling, note_frame, producer_id, whole_rollout
from support.full_disk import full_disk
from support.stores import ALL
from support.waiting import wait_until

P = producer_id("p")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "traces.db")
    yield store
    store.close()


@pytest.fixture
def target(store: SqliteStore) -> Iterator[str]:
    with collector_thread(store) as target:
        yield target


def test_open_tells_where_to_resume_and_each_batch_is_acked(target: str, store: SqliteStore) -> None:
    acks = send(target, [open_request(P), batch_request(P, [note_frame(1), note_frame(2)])])
    assert [(ack.producer, ack.committed_through) for ack in acks] == [(P, 0), (P, 2)]
    acks = send(target, [open_request(P), batch_request(P, [note_frame(3)])])
    assert [ack.committed_through for ack in acks] == [2, 3]
    assert store.high_water(P) == 3


def test_one_stream_carries_many_producers(target: str, store: SqliteStore) -> None:
    tellings = [whole_rollout(name) for name in "abc"]
    requests = [open_request(telling.producer) for telling in tellings]
    requests += [batch_request(telling.producer, telling.frames) for telling in tellings]
    acks = send(target, requests)
    assert [ack.producer for ack in acks] == [telling.producer for telling in tellings] * 2
    assert [ack.committed_through for ack in acks] == [0, 0, 0, 9, 9, 9]
    assert len(list(store.list_rollouts(ALL))) == 3


def test_an_ack_is_sent_only_when_another_process_can_read_the_record(target: str, tmp_path: Path) -> None:
    count = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); "
        "print(db.execute('SELECT count(*) FROM records').fetchone()[0])"
    )
    requests: queue.Queue[IngestRequest | None] = queue.Queue()
    with grpc.insecure_channel(target) as channel:
        answers = IngestStub(channel).Stream(iter(requests.get, None), timeout=60)
        for seq in range(1, 4):
            requests.put(batch_request(P, [note_frame(seq)]))
            assert next(answers).ack.committed_through == seq
            done = subprocess.run(
                [sys.executable, "-c", count, str(tmp_path / "traces.db")],
                capture_output=True,
                text=True,
                check=True,
            )
            assert int(done.stdout) == seq
        requests.put(None)


def test_refusals_come_with_the_ack(target: str) -> None:
    (ack,) = send(target, [batch_request(P, [Frame(seq=1, checksum=1, record=b"x"), note_frame(2)])])
    assert ack.committed_through == 2
    assert [refusal.seq for refusal in ack.refusals] == [1]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (IngestRequest(), "neither open nor batch"),
        (open_request(b""), "16 bytes, not 0"),
        (open_request(b"x" * 17), "16 bytes, not 17"),
        (batch_request(b"x" * 1000, [note_frame(1)]), "16 bytes, not 1000"),
        (batch_request(P, [Frame()] * 20_000), "20000 records, of at most 16384"),
    ],
)
def test_a_message_that_makes_no_sense_ends_its_stream_and_no_other(
    target: str, request_: IngestRequest, sentence: str
) -> None:
    requests: queue.Queue[IngestRequest | None] = queue.Queue()
    with grpc.insecure_channel(target) as channel:
        answers = IngestStub(channel).Stream(iter(requests.get, None), timeout=60)
        requests.put(batch_request(P, [note_frame(1)]))
        assert next(answers).ack.committed_through == 1
        with pytest.raises(grpc.RpcError) as caught:
            send(target, [request_])
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence in caught.value.details()
        requests.put(batch_request(P, [note_frame(2)]))
        assert next(answers).ack.committed_through == 2
        requests.put(None)


def test_what_came_before_a_senseless_message_is_acked(target: str, store: SqliteStore) -> None:
    with grpc.insecure_channel(target) as channel:
        answers = IngestStub(channel).Stream(iter([batch_request(P, [note_frame(1)]), IngestRequest()]))
        assert next(answers).ack.committed_through == 1
        with pytest.raises(grpc.RpcError):
            next(answers)
    assert store.high_water(P) == 1


def test_bytes_that_are_no_message_do_no_harm(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        raw = channel.stream_stream("/lightning.v1.Ingest/Stream")
        with pytest.raises(grpc.RpcError):
            list(raw(iter([b"\xff" * 100]), timeout=30))
    assert [ack.committed_through for ack in send(target, [batch_request(P, [note_frame(1)])])] == [1]


def test_a_record_of_tens_of_megabytes_is_stored(target: str, store: SqliteStore) -> None:
    text = b'{"x": "' + b"y" * (40 << 20) + b'"}'
    with grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
        answers = IngestStub(channel).Stream(iter([batch_request(P, [note_frame(1, text)])]), timeout=60)
        assert [answer.ack.committed_through for answer in answers] == [1]
    assert store.stats().counters["records"] == 1


def test_a_message_beyond_the_limit_ends_its_stream_with_a_status(target: str) -> None:
    text = b"y" * (65 << 20)
    with grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(IngestStub(channel).Stream(iter([batch_request(P, [note_frame(1, text)])]), timeout=60))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


class _SlowStore(SqliteStore):
    """Waits before each write until it is let go on, and tells how much it was given."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go = threading.Event()
        self.writing = threading.Event()
        self.sizes: list[int] = []

    def append_many(self, batches: Sequence[Batch]) -> list[Ack]:
        self.writing.set()
        assert self.go.wait(60)
        self.sizes.append(len(batches))
        return super().append_many(batches)


@pytest.fixture
def slow_store(tmp_path: Path) -> Iterator[_SlowStore]:
    store = _SlowStore(tmp_path / "slow.db")
    yield store
    store.go.set()
    store.close()


def test_what_queues_up_is_committed_together(slow_store: _SlowStore) -> None:
    with collector_thread(slow_store) as target:
        streams = [
            threading.Thread(
                target=send, args=(target, [batch_request(producer_id(str(i)), [note_frame(1)])])
            )
            for i in range(5)
        ]
        streams[0].start()
        assert slow_store.writing.wait(20)
        for stream in streams[1:]:
            stream.start()
        wait_until(lambda: threading.active_count() >= 5)
        slow_store.go.set()
        for stream in streams:
            stream.join(30)
    assert slow_store.sizes[0] == 1
    assert sum(slow_store.sizes) == 5
    assert slow_store.stats().counters["records"] == 5


def test_a_store_that_does_not_keep_up_stops_the_sender(slow_store: _SlowStore) -> None:
    batches = 400
    sent = 0

    def requests() -> Iterator[IngestRequest]:
        nonlocal sent
        for seq in range(1, batches + 1):
            sent = seq
            yield batch_request(P, [note_frame(seq, b'{"x": "' + b"y" * 100_000 + b'"}')])

    with collector_thread(slow_store) as target, grpc.insecure_channel(target) as channel:
        answers = IngestStub(channel).Stream(requests(), timeout=60)
        assert slow_store.writing.wait(20)
        wait_until(lambda: sent >= 32)
        before = -1
        while before != sent:  # until it has stood still for a while
            before = sent
            threading.Event().wait(0.3)
        assert sent < batches
        slow_store.go.set()
        assert [answer.ack.committed_through for answer in answers] == list(range(1, batches + 1))


async def test_senders_that_wait_hold_a_bounded_number_of_bytes(slow_store: _SlowStore) -> None:
    committer = GroupCommitter(slow_store, max_queued_bytes=100, max_waiting_bytes=250)
    committed = await committer.submit([(P, [note_frame(1)])], 100)
    waiting = [asyncio.create_task(committer.submit([(P, [note_frame(seq)])], 100)) for seq in (2, 3)]
    await asyncio.sleep(0)
    with pytest.raises(CollectorError, match="send it again later"):
        await committer.submit([(P, [note_frame(4)])], 100)
    slow_store.go.set()
    acks = [await committed, *[await (await task) for task in waiting]]
    assert [ack.committed_through for (ack,) in acks] == [1, 2, 3]
    # What waits no longer counts no longer.
    assert [ack.committed_through for ack in await (await committer.submit([(P, [note_frame(4)])], 100))] == [
        4
    ]
    await committer.close()


def test_a_store_that_cannot_be_written_is_told_as_a_reason_to_try_again(
    target: str, store: SqliteStore
) -> None:
    with full_disk(store), pytest.raises(grpc.RpcError) as caught:
        send(target, [batch_request(P, [note_frame(1, b"y" * 1_000_000)])])
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "make room on the disk" in caught.value.details()
    (ack,) = send(target, [batch_request(P, [note_frame(1, b"y" * 1_000_000)])])
    assert ack.committed_through == 1


def test_a_sender_that_disappears_leaves_what_it_sent(
    target: str, store: SqliteStore, tmp_path: Path
) -> None:
    telling = Telling()
    for index in range(200):
        telling.reward(f"r{index}")
    with grpc.insecure_channel(target) as channel:
        answers = IngestStub(channel).Stream(
            batch_request(telling.producer, telling.frames[first : first + 10]) for first in range(0, 200, 10)
        )
        acked = next(answers).ack.committed_through
        answers.cancel()
    assert store.high_water(telling.producer) >= acked
    with sqlite3.connect(tmp_path / "traces.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    ack = send(target, [batch_request(telling.producer, telling.frames)])[-1]
    assert ack.committed_through == 200
