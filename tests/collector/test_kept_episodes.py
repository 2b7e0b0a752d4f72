"""Episodes that the store keeps: what is read is what the assembly makes of the records, at every moment.

1. Whatever arrives in whatever order, kept or not, read straight or through a collector.
2. What was kept does not count any more once anything joins the rollout, or other code reads it.
3. A collector keeps what is complete by itself.
"""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.collector.reader import RemoteReader
from lightning_sdk.collector.store.base import RecordReader
from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.home import Home
from lightning_sdk.mdp import Episode, assemble
from lightning_sdk.mdp.fingerprint import FINGERPRINT_BYTES
from lightning_sdk.records import SourcedRecord
from support.collectors import collector_process
from support.frames import to_frame
from support.random_rollouts import random_rollout
from support.record_factory import Tape
from support.stores import ALL
from support.waiting import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def add(store: SqliteStore, records: list[SourcedRecord]) -> None:
    store.append_many([(each.producer, [to_frame(each.seq, each.record)]) for each in records])


def plainly(reader: RecordReader) -> list[Episode]:
    return [episode for _, records in reader.read_rollouts(ALL) for episode in assemble(records)]


def kept(path: Path) -> int:
    """How many rollouts' columns count."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT count(*) FROM rollouts JOIN episodes ON rollout = no WHERE assembled = revision"
        return int(connection.execute(query).fetchone()[0])


def one_rollout(name: str = "p") -> Tape:
    tape = Tape(name, rollout=f"ro_{name}")
    tape.start()
    tape.engine_call(f"ca_{name}", [1, 2], [3])
    tape.finish()
    return tape


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 2**32))
def test_what_is_read_is_what_the_assembly_makes_at_every_moment(seed: int) -> None:
    rng = random.Random(seed)
    records = [each for name in ("a", "b", "c") for each in random_rollout(rng, name)]
    late = Tape("late", rollout="")
    late.attempt = 0
    late.reward(0.5, "call", call="a_0")
    late.reward(0.25, "call", call="re_b_0")
    records += late.records
    if rng.random() < 0.5:
        rng.shuffle(records)
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder, "traces.db"))
        while records:
            size = rng.randrange(1, 30)
            some, records = records[:size], records[size:]
            add(store, some)
            assert list(store.read_episodes(ALL)) == plainly(store)
            store.keep_episodes(rng.randrange(1, 4))
            assert list(store.read_episodes(ALL)) == plainly(store)
        store.close()


def test_a_complete_rollout_is_kept_once(store: SqliteStore, path: Path) -> None:
    tape = one_rollout()
    add(store, tape.records[:-1])
    assert store.keep_episodes(10) == 0
    add(store, tape.records[-1:])
    assert store.keep_episodes(10) == 1
    assert store.keep_episodes(10) == 0
    assert kept(path) == 1


def test_no_more_are_kept_at_a_time_than_were_asked_for(store: SqliteStore) -> None:
    for name in ("a", "b", "c"):
        add(store, one_rollout(name).records)
    assert [store.keep_episodes(2) for _ in range(3)] == [2, 1, 0]


def test_a_late_reward_makes_what_was_kept_not_count(store: SqliteStore, path: Path) -> None:
    add(store, one_rollout().records)
    store.keep_episodes(10)
    late = Tape("late", rollout="")
    late.attempt = 0
    late.reward(0.5, "call", call="ca_p")
    add(store, late.records)
    assert kept(path) == 0
    assert [episode.return_ for episode in store.read_episodes(ALL)] == [0.5]
    assert store.keep_episodes(10) == 1
    assert [episode.return_ for episode in store.read_episodes(ALL)] == [0.5]


def test_the_text_of_an_attempt_is_found_after_another_one_has_begun(store: SqliteStore) -> None:
    add(store, one_rollout().records)
    store.keep_episodes(10)
    (episode,) = store.read_episodes(ALL)
    again = Tape("again", rollout="ro_p", attempt=2)
    again.start()
    add(store, again.records)
    assert [each.attempt for each in store.read_episodes(ALL)] == [2]
    assert episode.transitions[0].observation["messages"] == [{"role": "user", "content": "hello"}]


def test_what_other_code_assembled_is_assembled_anew(store: SqliteStore, path: Path) -> None:
    add(store, one_rollout().records)
    store.keep_episodes(10)
    expected = plainly(store)
    with closing(sqlite3.connect(path)) as connection, connection:
        other = bytes(FINGERPRINT_BYTES)
        connection.execute(
            "UPDATE episodes SET columns = CAST(? || substr(columns, ?) AS BLOB)",
            (other, FINGERPRINT_BYTES + 1),
        )
    assert list(store.read_episodes(ALL)) == expected
    store.close()
    with closing(SqliteStore(path)) as opened:
        assert kept(path) == 0
        assert opened.keep_episodes(10) == 1
        assert list(opened.read_episodes(ALL)) == expected


def test_one_that_cannot_be_kept_is_tried_once(store: SqliteStore, path: Path) -> None:
    tape = Tape()
    tape.start(metadata={"half": "\ud800"})
    tape.finish()
    add(store, tape.records)
    assert [store.keep_episodes(10), store.keep_episodes(10), kept(path)] == [1, 0, 0]
    assert list(store.read_episodes(ALL)) == plainly(store)


def test_a_fault_of_ours_in_one_keeps_no_other_from_being_kept(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails_once(episode: Episode) -> bytes | None:
        monkeypatch.undo()
        raise KeyError(episode.rollout_id)

    for name in ("a", "b"):
        add(store, one_rollout(name).records)
    monkeypatch.setattr("lightning_sdk.collector.store.sqlite_read.encode_episode", fails_once)
    assert [store.keep_episodes(10), store.keep_episodes(10), kept(path)] == [2, 0, 1]
    assert "cannot be laid out" in caplog.text
    assert list(store.read_episodes(ALL)) == plainly(store)


def test_a_query_is_answered_the_same(store: SqliteStore) -> None:
    for name in ("a", "b", "c"):
        add(store, one_rollout(name).records)
    store.keep_episodes(2)
    query = RolloutQuery(rollout_id_prefixes=["ro_b", "ro_c"], limit=1)
    assert list(store.read_episodes(query)) == [
        episode for _, records in store.read_rollouts(query) for episode in assemble(records)
    ]


def test_a_collector_keeps_what_is_complete_and_serves_it(tmp_path: Path) -> None:
    home = Home.locate(tmp_path / "home")
    home.ensure()
    with closing(SqliteStore(home.store)) as store:
        add(store, one_rollout("a").records)
        add(store, one_rollout("b").records[:-1])
        expected = plainly(store)
    with collector_process(home) as (_, target):
        wait_until(lambda: kept(home.store) == 1)
        with closing(RemoteReader(f"grpc://{target}")) as reader:
            assert list(reader.read_episodes(ALL)) == expected
            assert plainly(reader) == expected
