"""What other processes leave in the spool.

1. A process killed at any moment has lost nothing that `write` returned for: another one sends it.
2. A living process's records are its own business, unless it said that it only spools.
3. However much is left behind, only so many producers are read at once, and each gets its turn.
4. Damage is told to the collector by number, a torn tail only counted; only what is owed to us is touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_sdk._proto.ingest_pb2 import Ack
from lightning_sdk.client.adoption import MAX_SOURCES
from lightning_sdk.client.producer import Producer
from lightning_sdk.client.segments import list_segments
from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.client.stream import Backlog, Stream
from lightning_sdk.client.wakeup import Wakeup
from support.ingest_server import IngestServer
from support.spool_records import numbered, numbers_of


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def server() -> Iterator[IngestServer]:
    with IngestServer() as server:
        yield server


def left_behind(spool: Path, destination: str, numbers: range, **options: int) -> bytes:
    """A producer that died: its id."""
    producer = os.urandom(16)
    writer = SpoolWriter(spool, producer, destination=destination, **options)  # type: ignore[arg-type]
    for number in numbers:
        writer.append(numbered(number, size=100).SerializeToString())
    writer.close()
    return producer


def eventually(condition: Callable[[], bool], timeout_s: float = 20) -> bool:
    """Wait for a state that nobody tells of."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def names(spool: Path, producer: bytes) -> list[str]:
    return [path.name for path in spool.iterdir() if path.name.startswith(producer.hex())]


WRITER = """
    import itertools, sys
    from pathlib import Path
    from lightning_sdk.client.producer import Producer
    from lightning_sdk.records import Note, Record

    producer = Producer(Path(sys.argv[1]), destination=sys.argv[2], segment_bytes=100_000)
    print(producer.id.hex(), flush=True)
    for number in itertools.count(1):
        producer.write(Record(order=number, note=Note(values=b"x" * 300)))
        print(number, flush=True)
"""


@pytest.mark.parametrize("collector", ["present", "absent"])
def test_what_a_killed_process_wrote_arrives_through_another(
    spool: Path, server: IngestServer, collector: str
) -> None:
    destination = server.destination
    if collector == "absent":
        server.stop()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(spool), destination],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    killed = bytes.fromhex(process.stdout.readline().strip())
    returned = 0
    for line in process.stdout:
        returned = int(line)
        if returned >= 1500 and process.poll() is None:
            process.kill()
    process.wait()
    process.stdout.close()
    if collector == "absent":
        server.start()
    heir = Producer(spool, destination=destination)
    heir.write(numbered(1))
    assert eventually(lambda: not names(spool, killed))
    found = numbers_of(server.records(killed))
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= returned
    assert server.seen["conflicts"] == server.seen["gaps"] == 0
    assert heir.close()


def test_a_living_process_with_a_sender_is_left_alone(spool: Path, server: IngestServer) -> None:
    server.faults.running.clear()
    living = Producer(spool, destination=server.destination)
    living.write(numbered(1))
    other = Producer(spool, destination=server.destination)
    other.write(numbered(1))
    dead = left_behind(spool, server.destination, range(1, 4))
    server.faults.running.set()
    assert living.flush(20)
    assert other.flush(20)
    assert server.wait_until(lambda: len(server.frames.get(dead, {})) == 3)
    assert server.seen["again"] == 0
    assert living.close()
    assert other.close()


def test_only_what_is_owed_to_the_same_destination_is_adopted(spool: Path, server: IngestServer) -> None:
    nobodys = left_behind(spool, "", range(1, 3))
    elsewhere = left_behind(spool, "grpc://127.0.0.1:9", range(1, 3))
    ours = left_behind(spool, server.destination, range(1, 3))
    heir = Producer(spool, destination=server.destination)
    heir.write(numbered(1))
    assert eventually(lambda: not names(spool, ours))
    assert heir.close()
    assert set(server.frames) == {ours, heir.id}
    assert len(names(spool, nobodys)) == len(names(spool, elsewhere)) == 1


def test_many_segments_of_one_producer_arrive_in_order_without_a_gap(
    spool: Path, server: IngestServer
) -> None:
    dead = left_behind(spool, server.destination, range(1, 501), segment_bytes=5000)
    assert len(names(spool, dead)) > 5
    heir = Producer(spool, destination=server.destination)
    heir.write(numbered(1))
    assert eventually(lambda: not names(spool, dead))
    assert numbers_of(server.records(dead)) == list(range(1, 501))
    assert heir.close()


def test_what_the_collector_has_already_is_not_sent_again_but_deleted(
    spool: Path, server: IngestServer
) -> None:
    dead = left_behind(spool, server.destination, range(1, 6))
    backup = {path: path.read_bytes() for path in list_segments(spool)}
    heir = Producer(spool, destination=server.destination)
    heir.write(numbered(1))
    assert eventually(lambda: not names(spool, dead))
    for path, content in backup.items():  # as if the first deletion had never happened
        path.write_bytes(content)
    assert eventually(lambda: not names(spool, dead))
    assert server.seen["again"] == 0
    assert heir.close()


def test_however_many_have_died_only_so_many_are_read_at_once(tmp_path: Path) -> None:
    dead = [left_behind(tmp_path, "grpc://127.0.0.1:1", range(1, 4)) for _ in range(100)]
    own = SpoolWriter(tmp_path, b"p" * 16, destination="grpc://127.0.0.1:1")
    backlog = Backlog(own)
    stream = Stream(backlog, Wakeup(), Wakeup())
    before = open_files()
    arrived: dict[bytes, int] = {}
    for request in stream.requests():
        if request.WhichOneof("message") == "open":
            producer = request.open.producer
            arrived.setdefault(producer, 0)
        else:
            producer = request.batch.producer
            arrived[producer] += len(request.batch.frames)
        # Some files more: the lock of the adopter, and one that is being looked at.
        assert open_files() - before <= MAX_SOURCES + 4
        stream.acknowledged(Ack(producer=producer, committed_through=arrived[producer]))
        if len(arrived) == 100 and set(arrived.values()) == {3}:
            stream.end()
    assert arrived == dict.fromkeys(dead, 3)
    backlog.refresh()
    assert list_segments(tmp_path) == []
    backlog.disconnected()


def test_living_children_beyond_what_is_read_at_once_get_their_turn(
    spool: Path, server: IngestServer
) -> None:
    children = [
        SpoolWriter(spool, os.urandom(16), destination=server.destination, spool_only=True)
        for _ in range(MAX_SOURCES + 4)
    ]
    parent = Producer(spool, destination=server.destination)
    parent.write(numbered(1))
    for round_ in (1, 2):
        for child in children:
            child.append(numbered(round_).SerializeToString())
        assert server.wait_until(
            lambda round_=round_: all(len(server.frames.get(c.producer, ())) == round_ for c in children)
        )
    for child in children:
        child.close()
    assert eventually(lambda: not any(names(spool, child.producer) for child in children))
    assert parent.close()


def test_a_torn_tail_is_counted_and_nothing_else(spool: Path, server: IngestServer) -> None:
    dead = left_behind(spool, server.destination, range(1, 4))
    (path,) = list_segments(spool)
    with path.open("ab") as file:
        file.write(b"\x50\x00\x00\x00\x00\x00\x00\x00cut short")
    heir = Producer(spool, destination=server.destination)
    heir.write(numbered(1))
    assert eventually(lambda: not names(spool, dead))
    assert numbers_of(server.records(dead)) == [1, 2, 3]
    assert server.lost(dead) == {}
    assert heir.counters == {"torn_tails": 1}
    assert heir.close()


def test_a_damaged_record_is_a_tombstone_and_those_after_it_arrive(spool: Path, server: IngestServer) -> None:
    dead = left_behind(spool, server.destination, range(1, 6))
    (path,) = list_segments(spool)
    raw = bytearray(path.read_bytes())
    frame_bytes = 8 + len(numbered(1, size=100).SerializeToString())
    raw[len(raw) - 3 * frame_bytes + 50] ^= 1  # in the third of five
    path.write_bytes(raw)
    heir = Producer(spool, destination=server.destination)
    heir.write(numbered(1))
    assert eventually(lambda: not names(spool, dead))
    assert numbers_of(server.records(dead)) == [1, 2, 4, 5]
    assert list(server.lost(dead)) == [3]
    assert "wrong checksum" in server.lost(dead)[3]
    assert heir.counters == {"damaged": 1}
    assert heir.close()


def test_where_the_rest_cannot_be_read_the_next_segment_tells_how_many_are_lost(
    spool: Path, server: IngestServer
) -> None:
    dead = left_behind(spool, server.destination, range(1, 101), segment_bytes=5000)
    first, second, *_ = list_segments(spool)
    next_seq = int(second.stem.rpartition("-")[2])
    raw = bytearray(first.read_bytes())
    frame_bytes = 8 + len(numbered(1, size=100).SerializeToString())
    raw[len(raw) - 2 * frame_bytes : len(raw) - frame_bytes] = b"\xff" * frame_bytes
    first.write_bytes(raw)
    heir = Producer(spool, destination=server.destination)
    heir.write(numbered(1))
    assert eventually(lambda: not names(spool, dead))
    assert list(server.lost(dead)) == [next_seq - 2, next_seq - 1]
    assert numbers_of(server.records(dead)) == [*range(1, next_seq - 2), *range(next_seq, 101)]
    assert heir.close()


def test_of_an_unreadable_end_one_record_is_known_lost_and_the_file_is_kept_aside(
    spool: Path, server: IngestServer
) -> None:
    dead = left_behind(spool, server.destination, range(1, 4))
    (path,) = list_segments(spool)
    with path.open("ab") as file:
        file.write(b"\xff" * 500)
    heir = Producer(spool, destination=server.destination)
    heir.write(numbered(1))
    assert eventually(lambda: names(spool, dead) == [f"{path.name}.damaged"])
    assert list(server.lost(dead)) == [4]
    assert heir.counters == {"damaged": 1, "unreadable": 1}
    assert heir.close()


def test_what_is_no_segment_is_left_alone_and_holds_up_nothing(spool: Path, server: IngestServer) -> None:
    spool.mkdir()
    (spool / "0.seg").write_bytes(b"hello")
    os.mkfifo(spool / "1.seg")
    dead = left_behind(spool, server.destination, range(1, 3))
    heir = Producer(spool, destination=server.destination)
    heir.write(numbered(1))
    assert eventually(lambda: not names(spool, dead))
    assert heir.counters["unreadable"] >= 1
    assert (spool / "0.seg").read_bytes() == b"hello"
    assert heir.close()
