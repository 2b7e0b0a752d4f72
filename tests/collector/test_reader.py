"""What reads stored rollouts: straight from the store, or through a collector, with the same result.

1. Nobody serves the store: the spool is adopted, the store is read, and no other command is kept from it.
2. A living collector owns it: it is read through that, and tells of what lies in the spool by then.
3. What cannot be reached is one sentence that says what to do.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.collector import reader as reader_module
from lightning_sdk.collector.reader import Reader, RemoteReader, open_reader
from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.collector.store.sqlite_read import SqliteReader
from lightning_sdk.errors import CollectorError, ConfigError, StoreBusyError
from lightning_sdk.home import Home
from support.collectors import collector_process
from support.frames import START_NS, Telling, rollout_id, whole_rollout
from support.segments import living_owner, write_segment
from support.waiting import wait_until

ALL = RolloutQuery()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.locate(tmp_path / "home")


def spool_rollouts(home: Home, *names: str, at_ns: int = START_NS) -> None:
    for offset, name in enumerate(names):
        telling = whole_rollout(name, at_ns=at_ns + 100 * offset, project="demo", task_id=f"task {name}")
        write_segment(home.spool, telling.producer, telling.frames)


def everything(reader: Reader, query: RolloutQuery) -> object:
    return (
        [summary.SerializeToString() for summary in reader.list_rollouts(query)],
        [
            (summary.SerializeToString(), [(each.producer, each.seq, each.record) for each in records])
            for summary, records in reader.read_rollouts(query)
        ],
    )


def test_a_newcomers_rollouts_are_read_without_a_server(home: Home) -> None:
    spool_rollouts(home, "a", "b")
    with closing(open_reader(home)) as reader:
        assert [summary.rollout_id for summary in reader.list_rollouts(ALL)] == [
            rollout_id("b"),
            rollout_id("a"),
        ]
        assert reader.stats().counters["records"] == 18
    assert list(home.spool.glob("*")) == []


def test_nothing_recorded_yet_is_nothing_to_read(home: Home) -> None:
    with closing(open_reader(home)) as reader:
        assert list(reader.list_rollouts(ALL)) == []
        assert list(reader.read_rollouts(ALL)) == []


def test_reading_keeps_nobody_else_from_the_store(home: Home) -> None:
    spool_rollouts(home, "a", "b")
    with closing(open_reader(home)) as reader:
        reading = reader.read_rollouts(ALL)
        next(reading)
        spool_rollouts(home, "c")
        with closing(open_reader(home)) as second:
            assert len(list(second.list_rollouts(ALL))) == 3
        assert len(list(reading)) == 1


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, str]]:
    """A home with three rollouts and tokens for their calls, and the collector that owns it."""
    home = Home.locate(tmp_path_factory.mktemp("served"))
    spool_rollouts(home, "a", "b", "c")
    engine = Telling("engine")
    for name in "abc":
        engine.tokens(f"ca_{name}")
    write_segment(home.spool, engine.producer, engine.frames)
    with collector_process(home) as (_, target):
        yield home, f"grpc://{target}"


@pytest.mark.parametrize(
    "query",
    [
        ALL,
        RolloutQuery(limit=2),
        RolloutQuery(project="demo", task_id="task b"),
        RolloutQuery(project="none"),
        RolloutQuery(rollout_id_prefixes=[rollout_id("a")[3:9], rollout_id("c")]),
    ],
)
def test_through_a_collector_is_the_same_as_straight_from_the_store(
    served: tuple[Home, str], query: RolloutQuery
) -> None:
    home, endpoint = served
    with closing(open_reader(home, endpoint=endpoint)) as remote, closing(SqliteReader(home.store)) as local:
        assert everything(remote, query) == everything(local, query)
        stats = remote.stats()
        for name, value in local.stats().counters.items():
            assert stats.counters[name] == value
        assert (stats.store, stats.schema_version) == (str(home.store), local.stats().schema_version)


def test_a_collector_that_owns_the_store_is_found_and_read_through(served: tuple[Home, str]) -> None:
    home, _ = served
    with closing(open_reader(home)) as reader:
        assert isinstance(reader, RemoteReader)
        assert len(list(reader.list_rollouts(ALL))) == 3


def test_a_collector_tells_of_what_was_written_the_moment_before(home: Home) -> None:
    with collector_process(home), closing(open_reader(home)) as reader:
        for round_ in range(5):
            telling = whole_rollout(f"r{round_}")
            path = write_segment(home.spool, telling.producer, telling.frames)
            with living_owner(path):
                assert len(list(reader.list_rollouts(ALL))) == round_ + 1


def test_a_reader_that_stops_halfway_leaves_the_collector_well(served: tuple[Home, str]) -> None:
    _, endpoint = served
    with closing(RemoteReader(endpoint)) as reader:
        for _ in range(20):
            iterator = reader.read_rollouts(ALL)
            next(iterator)
            del iterator
        assert len(list(reader.read_rollouts(ALL))) == 3


def test_a_large_rollout_crosses_the_wire(home: Home) -> None:
    telling = Telling()
    for _ in range(3):
        telling.record("big", note={"values": b"y" * (22 << 20)})
    home.ensure()
    store = SqliteStore(home.store)
    for frame in telling.frames:
        store.append(telling.producer, [frame])
    store.close()
    with collector_process(home), closing(open_reader(home)) as reader:
        ((_, records),) = reader.read_rollouts(ALL)
    assert [len(each.record.note.values) for each in records] == [22 << 20] * 3


def test_what_a_dead_collector_left_is_ignored(home: Home) -> None:
    spool_rollouts(home, "a")
    with collector_process(home) as (process, _):
        wait_until(lambda: not list(home.spool.glob("*.seg")))
        process.kill()
        process.wait(20)
    assert home.collector.exists()
    with closing(open_reader(home)) as reader:
        assert isinstance(reader, SqliteReader)
        assert len(list(reader.list_rollouts(ALL))) == 1


def test_what_a_dead_collector_left_is_ignored_while_another_command_adopts(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool_rollouts(home, "a")
    home.ensure()
    home.collector.write_text(json.dumps({"address": "grpc://127.0.0.1:9", "pid": 1}))
    hold = """
import sys, time
from pathlib import Path
from lightning_sdk.collector.store.sqlite import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
print("owned", flush=True)
sys.stdin.read()
store.close()
"""
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(home.store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        monkeypatch.setattr(reader_module, "_PATIENCE_S", 0.2)
        with pytest.raises(StoreBusyError, match=f"in use by process {other.pid}"):
            open_reader(home)
        monkeypatch.setattr(reader_module, "_PATIENCE_S", 20.0)
        other.stdin.close()  # lets it go on, while we wait
        with closing(open_reader(home)) as reader:
            assert len(list(reader.list_rollouts(ALL))) == 1


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"address": 1, "pid": "x"}', "\0" * 100])
def test_an_unreadable_announcement_is_ignored(home: Home, content: str) -> None:
    home.ensure()
    home.collector.write_text(content)
    with closing(open_reader(home)) as reader:
        assert isinstance(reader, SqliteReader)


def test_an_endpoint_where_nobody_listens_is_one_sentence(home: Home) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(
            CollectorError, match=rf"grpc://127\.0\.0\.1:{port} cannot be reached .*lsdk collect"
        ):
            open_reader(home, endpoint=f"grpc://127.0.0.1:{port}")
    assert not home.path.exists()


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:4319",
        "http://host:1",
        "grpc://host",
        "grpc://host:x",
        "grpc://:1",
        "grpc://user:s3cret@host:1",
        "grpc://host:1?token=s",
        "grpc://host:1/path",
    ],
)
def test_what_is_no_endpoint_is_refused_with_an_example(home: Home, endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"grpc://127\.0\.0\.1:4319") as caught:
        open_reader(home, endpoint=endpoint)
    assert "s3cret" not in str(caught.value)


def test_a_collector_that_dies_while_it_is_read_is_one_sentence(home: Home) -> None:
    spool_rollouts(home, "a")
    with collector_process(home) as (process, _), closing(open_reader(home)) as reader:
        os.kill(process.pid, 9)
        process.wait(20)
        with pytest.raises(CollectorError, match="cannot be reached"):
            list(reader.list_rollouts(ALL))
