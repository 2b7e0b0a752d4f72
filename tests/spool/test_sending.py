"""The producer and its sender, against a real server.

1. Every record that was written arrives, once, in order, whatever the connection does.
2. Losses and refusals are told by number and reason, and hold up nothing else.
3. `flush` and `close` are bounded and tell the truth.
4. A collector that is absent, paused or refuses the token costs neither time nor memory nor records.
"""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_sdk._proto.ingest_pb2 import Ack, IngestRequest
from lightning_sdk.client.producer import Producer
from lightning_sdk.client.segments import SegmentReader, list_segments
from lightning_sdk.client.sources import BATCH_FRAMES
from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.client.stream import WINDOW_BATCHES, Backlog, Stream
from lightning_sdk.client.wakeup import Wakeup
from lightning_sdk.errors import ConfigError, SpoolError
from lightning_sdk.records import Record
from support.ingest_server import IngestServer
from support.spool_records import numbered, numbers_of, write_numbers


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def server() -> Iterator[IngestServer]:
    with IngestServer() as server:
        yield server


@pytest.fixture
def absent() -> str:
    """A destination where nobody listens."""
    with IngestServer() as server:
        return server.destination


def test_records_arrive_in_order_in_batches_and_leave_the_disk(spool: Path, server: IngestServer) -> None:
    producer = Producer(spool, destination=server.destination)
    write_numbers(producer, range(1, 3001), size=300)
    assert producer.flush(20)
    assert numbers_of(server.records(producer.id)) == list(range(1, 3001))
    assert 1 < server.largest_batch_frames <= 512
    assert producer.close()
    assert list_segments(spool) == []
    assert producer.counters == {}


def test_without_a_destination_records_wait_on_disk_and_nothing_is_sent(spool: Path) -> None:
    producer = Producer(spool)
    write_numbers(producer, range(1, 4))
    assert producer.flush(0)
    assert producer.close()
    assert producer.close(), "twice is once"
    (path,) = list_segments(spool)
    reader = SegmentReader(path)
    assert [Record.FromString(frame.record).order for frame in reader.read()] == [1, 2, 3]
    assert reader.header.destination == ""
    reader.close()
    with pytest.raises(SpoolError, match="closed"):
        producer.write(numbered(4))
    assert (producer.written, producer.lost) == (3, 1)


def test_making_a_producer_costs_no_file_no_thread_and_no_grpc(spool: Path) -> None:
    script = """
        import sys, threading
        from pathlib import Path
        from lightning_sdk.client.producer import Producer
        producer = Producer(Path(sys.argv[1]), destination="grpc://127.0.0.1:1")
        assert threading.active_count() == 1
        assert "grpc" not in sys.modules
        assert not Path(sys.argv[1]).exists()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(spool)], check=True, timeout=60)


def test_the_clock_ticks_from_one_and_each_value_once(spool: Path) -> None:
    producer = Producer(spool)
    assert [producer.tick() for _ in range(3)] == [1, 2, 3]
    ticks: list[int] = []
    threads = [
        threading.Thread(target=lambda: ticks.extend(producer.tick() for _ in range(500))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ticks) == list(range(4, 2004))
    assert len(producer.id) == 16
    assert producer.id != Producer(spool).id


@pytest.mark.parametrize("after_commit", [False, True])
def test_connections_that_break_lose_nothing_and_double_nothing(
    spool: Path, server: IngestServer, after_commit: bool
) -> None:
    server.faults.drop_after_commit = after_commit
    producer = Producer(spool, destination=server.destination, segment_bytes=20_000)
    for round_ in range(4):
        server.faults.batches_before_drop = round_
        write_numbers(producer, range(round_ * 1000 + 1, round_ * 1000 + 1001), size=100)
        assert producer.flush(20)
    assert numbers_of(server.records(producer.id)) == list(range(1, 4001))
    assert server.seen["connections"] >= 2
    assert server.seen["conflicts"] == server.seen["gaps"] == 0
    assert producer.close()
    assert list_segments(spool) == []


def test_a_collector_that_restarts_in_mid_stream_gets_every_record_once(
    spool: Path, server: IngestServer
) -> None:
    producer = Producer(spool, destination=server.destination, segment_bytes=20_000)
    write_numbers(producer, range(1, 2001), size=100)
    assert server.wait_until(lambda: server.count() >= 500)
    server.stop()
    write_numbers(producer, range(2001, 4001), size=100)
    server.start()
    assert producer.flush(20)
    assert numbers_of(server.records(producer.id)) == list(range(1, 4001))
    assert server.seen["conflicts"] == server.seen["gaps"] == 0
    assert producer.close()


def test_records_written_while_the_collector_was_away_arrive_when_it_comes(spool: Path, absent: str) -> None:
    producer = Producer(spool, destination=absent)
    write_numbers(producer, range(1, 101))
    assert not producer.flush(0.2)
    server = IngestServer()
    server.port = int(absent.rpartition(":")[2])
    with server:
        assert producer.flush(20)
        assert numbers_of(server.records(producer.id)) == list(range(1, 101))
        assert producer.close()


def test_flush_and_close_say_false_in_time_when_nobody_listens_and_the_records_stay(
    spool: Path, absent: str
) -> None:
    producer = Producer(spool, destination=absent)
    write_numbers(producer, range(1, 11))
    assert not producer.flush(0.1)
    assert not producer.close(0.1)
    assert not producer.close(0.1)
    (path,) = list_segments(spool)
    reader = SegmentReader(path)
    assert len(reader.read()) == 10
    reader.close()


def test_flush_covers_what_was_written_before_it_and_is_true_for_nothing(spool: Path, absent: str) -> None:
    assert Producer(spool, destination=absent).flush(0)


def test_flush_without_a_limit_waits_as_long_as_it_takes(spool: Path, absent: str) -> None:
    producer = Producer(spool, destination=absent)
    producer.write(numbered(1))
    flushed: list[bool] = []
    thread = threading.Thread(target=lambda: flushed.append(producer.flush(None)))
    thread.start()
    assert not producer.flush(0.5), "the same, with a limit"
    assert thread.is_alive()
    server = IngestServer()
    server.port = int(absent.rpartition(":")[2])
    with server:
        thread.join(20)
        assert flushed == [True]
        assert producer.close()


def test_flush_without_a_limit_ends_with_the_sender(spool: Path, absent: str) -> None:
    producer = Producer(spool, destination=absent)
    producer.write(numbered(1))
    flushed: list[bool] = []
    thread = threading.Thread(target=lambda: flushed.append(producer.flush()))
    thread.start()
    assert not producer.close(0.1)
    thread.join(20)
    assert flushed == [False]


def test_a_paused_collector_holds_up_neither_the_writer_nor_close(spool: Path, server: IngestServer) -> None:
    server.faults.running.clear()
    producer = Producer(spool, destination=server.destination)
    write_numbers(producer, range(1, 2001), size=2000)
    assert producer.written == 2000
    assert not producer.flush(0.2)
    assert not producer.close(0.2)
    server.faults.running.set()
    heir = Producer(spool, destination=server.destination)
    heir.write(numbered(1))
    assert server.wait_until(lambda: len(server.frames.get(producer.id, {})) == 2000)
    assert numbers_of(server.records(producer.id)) == list(range(1, 2001))
    assert heir.close()


def test_no_more_than_the_window_is_on_its_way_without_an_answer(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path, b"p" * 16, destination="grpc://127.0.0.1:1")
    record = numbered(1).SerializeToString()
    for _ in range(BATCH_FRAMES * (WINDOW_BATCHES + 9)):
        spool.append(record)
    stream = Stream(Backlog(spool), Wakeup(), Wakeup())
    sent: queue.Queue[IngestRequest] = queue.Queue()

    def send() -> None:
        for request in stream.requests():
            sent.put(request)

    thread = threading.Thread(target=send)
    thread.start()
    assert sent.get(timeout=20).open.producer == spool.producer
    stream.acknowledged(Ack(producer=spool.producer, committed_through=0))
    batches = [sent.get(timeout=20).batch for _ in range(WINDOW_BATCHES)]
    assert [batch.frames[0].seq for batch in batches] == [1 + BATCH_FRAMES * n for n in range(WINDOW_BATCHES)]
    stream.acknowledged(Ack(producer=spool.producer, committed_through=BATCH_FRAMES))
    assert sent.get(timeout=20).batch.frames[0].seq == 1 + BATCH_FRAMES * WINDOW_BATCHES
    stream.end()
    thread.join(20)
    assert not thread.is_alive()
    assert sent.empty()
    spool.close()


def test_refused_records_are_counted_and_hold_up_nothing(
    spool: Path, server: IngestServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults.refuse = lambda record: "multiple of three" if record.order % 3 == 0 else None
    producer = Producer(spool, destination=server.destination)
    write_numbers(producer, range(1, 10))
    with caplog.at_level(logging.WARNING, "lightning_sdk"):
        assert producer.flush(20)
    assert numbers_of(server.records(producer.id)) == [1, 2, 4, 5, 7, 8]
    assert producer.counters == {"refused": 3}
    assert [message for message in caplog.messages if "multiple of three" in message] == [
        f"the collector refused record 3 of producer {producer.id.hex()}: multiple of three "
        "(more are counted, not logged)"
    ]
    assert producer.close()


def test_a_record_too_large_for_the_collector_becomes_a_tombstone_and_takes_no_other_along(
    spool: Path,
) -> None:
    with IngestServer(max_message_bytes=4 << 20) as server:
        producer = Producer(spool, destination=server.destination)
        producer.write(numbered(1))
        producer.write(numbered(2, size=5 << 20))
        producer.write(numbered(3, size=3 << 20))
        producer.write(numbered(4))
        assert producer.flush(20)
        assert numbers_of(server.records(producer.id)) == [1, 3, 4]
        assert list(server.lost(producer.id)) == [2]
        assert "messages of 4194304" in server.lost(producer.id)[2]
        assert producer.counters["too_large"] == 1
        assert producer.close()


def test_a_record_of_many_megabytes_arrives(spool: Path, server: IngestServer) -> None:
    producer = Producer(spool, destination=server.destination)
    producer.write(numbered(1, size=20 << 20))
    assert producer.flush(30)
    assert numbers_of(server.records(producer.id)) == [1]
    assert producer.close()


def test_a_refused_token_is_told_once_with_the_mend_and_costs_no_record(
    spool: Path, server: IngestServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults.token = "the right one"
    producer = Producer(spool, destination=server.destination, token="the wrong one")
    with caplog.at_level(logging.WARNING, "lightning_sdk"):
        write_numbers(producer, [1, 2])
        assert server.wait_until(lambda: server.seen["unauthenticated"] >= 1)
        for _ in range(2):
            assert not producer.flush(0.3)
    (message,) = [message for message in caplog.messages if "UNAUTHENTICATED" in message]
    assert "LIGHTNING_TOKEN" in message
    assert "wrong one" not in message
    server.faults.token = "the wrong one"
    assert producer.flush(20)
    assert numbers_of(server.records(producer.id)) == [1, 2]
    assert producer.close()


def test_a_destination_or_token_that_cannot_be_used_is_refused_at_once(spool: Path) -> None:
    with pytest.raises(ConfigError, match="grpc://host:port"):
        Producer(spool, destination="http://127.0.0.1:4319")
    with pytest.raises(ConfigError, match="ASCII"):
        Producer(spool, destination="grpc://h:1", token="sec\nret")


def test_records_whose_segment_somebody_deleted_are_tombstones(spool: Path, server: IngestServer) -> None:
    server.faults.running.clear()
    producer = Producer(spool, destination=server.destination, segment_bytes=20_000)
    write_numbers(producer, range(1, 301), size=500)
    first, second, third, *_ = (SegmentReader(path).header.first_seq for path in list_segments(spool))
    list_segments(spool)[1].unlink()
    server.faults.running.set()
    assert producer.flush(20)
    lost = server.lost(producer.id)
    assert list(lost) == list(range(second, third))
    assert numbers_of(server.records(producer.id)) == [*range(first, second), *range(third, 301)]
    assert producer.counters == {"damaged": third - second}
    assert producer.close()


def test_a_collector_that_went_back_in_time_gets_tombstones_for_what_is_gone_and_then_goes_on(
    spool: Path, server: IngestServer
) -> None:
    producer = Producer(spool, destination=server.destination, segment_bytes=20_000)
    write_numbers(producer, range(1, 101), size=500)
    assert producer.flush(20)
    first_kept = SegmentReader(list_segments(spool)[0]).header.first_seq
    assert first_kept > 1
    server.stop()
    server.frames.clear()
    server.start()
    write_numbers(producer, [101])
    assert producer.flush(20)
    assert list(server.lost(producer.id)) == list(range(1, first_kept))
    assert numbers_of(server.records(producer.id)) == list(range(first_kept, 102))
    assert producer.close()


def test_memory_does_not_grow_while_the_collector_is_absent(spool: Path, absent: str) -> None:
    script = """
        import sys, resource
        from pathlib import Path
        from lightning_sdk.client.producer import Producer
        from lightning_sdk.records import Note, Record

        producer = Producer(Path(sys.argv[1]), destination=sys.argv[2])
        record = Record(order=1, note=Note(values=b"x" * 20_000))
        for _ in range(100):
            producer.write(record)
        producer.flush(1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(8000):
            producer.write(record)
        producer.flush(1)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, producer.written)
        producer.close(0.1)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(spool), absent],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    grown, written = map(int, done.stdout.split())
    assert written == 8100
    assert grown < 32 << 20, "160 MB were written"


@pytest.mark.parametrize("ending", ["sys.exit()", "raise SystemExit(0)", "os._exit(0)"])
def test_a_process_may_end_at_any_moment_and_what_it_wrote_is_not_lost(
    spool: Path, server: IngestServer, ending: str
) -> None:
    script = f"""
        import os, sys
        from pathlib import Path
        from lightning_sdk.client.producer import Producer
        from lightning_sdk.records import Note, Record

        producer = Producer(Path(sys.argv[1]), destination=sys.argv[2])
        for number in range(1, 2001):
            producer.write(Record(order=number, note=Note(values=b"x" * 100)))
        print(producer.id.hex(), flush=True)
        {ending}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(spool), server.destination],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    gone = bytes.fromhex(done.stdout.strip())
    heir = Producer(spool, destination=server.destination)
    heir.write(numbered(1))
    assert server.wait_until(lambda: len(server.frames.get(gone, {})) == 2000)
    assert numbers_of(server.records(gone)) == list(range(1, 2001))
    assert heir.close()
