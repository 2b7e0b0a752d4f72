"""The SQLite store: the contract, and what only a file can do wrong.

1. Whatever cannot be opened is refused in one sentence that says what to do.
2. A write that fails leaves nothing, and nothing of it is acknowledged.
3. What is acknowledged another process can read.
"""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_sdk.collector.store.schema import SCHEMA_VERSION
from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.collector.store.sqlite_read import SqliteReader
from lightning_sdk.errors import StoreError
from support.frames import note_frame, producer_id, whole_rollout
from support.full_disk import full_disk
from support.store_contract import StoreContract
from support.stores import ALL, OpenStore, add

P = producer_id("p")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def open_store(self, path: Path) -> OpenStore:
        return lambda: SqliteStore(path)


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def test_only_its_owner_can_read_the_files(store: SqliteStore, path: Path) -> None:
    add(store, whole_rollout("a"))
    files = sorted(each.name for each in path.parent.iterdir())
    assert files == ["traces.db", "traces.db-shm", "traces.db-wal", "traces.db.lock"]
    assert {stat.S_IMODE((path.parent / name).stat().st_mode) for name in files} == {0o600}


def test_it_is_as_durable_and_as_fast_as_it_was_measured(store: SqliteStore, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        pragmas = [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "journal_mode")
        ]
    assert pragmas == [16384, "wal"]
    assert store._open().execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)
    with pytest.raises(
        StoreError, match=r"traces\.db cannot be opened \(file is not a database\): .* move it away"
    ):
        SqliteStore(path)
    assert path.read_bytes().startswith(b"not a database")


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreError, match="a database of another program"):
        SqliteStore(path)


@pytest.mark.parametrize(
    ("version", "mend"),
    [(SCHEMA_VERSION + 1, "upgrade agent-lightning-sdk"), (SCHEMA_VERSION - 1, "move it away")],
)
def test_another_schema_is_refused_by_writer_and_reader(path: Path, version: int, mend: str) -> None:
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    before = path.read_bytes()
    for open_it in (SqliteStore, SqliteReader):
        with pytest.raises(StoreError, match=rf"schema version {version}.*{mend}"):
            open_it(path)
    assert path.read_bytes() == before


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="LIGHTNING_HOME"):
        SqliteStore(tmp_path / "file" / "traces.db")
    with pytest.raises(StoreError, match="LIGHTNING_HOME"):
        SqliteStore(tmp_path / "missing" / "traces.db")


def test_a_refused_store_is_not_left_locked(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StoreError):
        SqliteStore(path)
    path.unlink()
    SqliteStore(path).close()


def test_a_reader_does_not_make_a_store(path: Path) -> None:
    with pytest.raises(StoreError, match="no store at"):
        SqliteReader(path)
    assert not path.exists()


def test_a_full_disk_refuses_the_whole_write_and_room_mends_it(store: SqliteStore) -> None:
    store.append(P, [note_frame(1)])
    big = b'{"x": "' + b"y" * 100_000 + b'"}'
    with (
        full_disk(store),
        pytest.raises(StoreError, match=r"cannot be written \(database or disk is full\): make room"),
    ):
        store.append_many([(producer_id("new"), [note_frame(1)]), (P, [note_frame(2), note_frame(3, big)])])
    assert store.high_water(P) == 1
    assert store.stats().counters["records"] == 1
    assert store.stats().counters["producers"] == 1
    assert store.append(P, [note_frame(2), note_frame(3, big)]).committed_through == 3


def test_a_file_that_cannot_grow_refuses_the_write(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.errors import StoreError
from support.frames import note_frame, producer_id
store = SqliteStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
acked = 0
try:
    while True:
        frames = [note_frame(acked + 1, b'{"x": "' + b"y" * 50_000 + b'"}')]
        acked = store.append(producer_id("p"), frames).committed_through
except StoreError as error:
    print(acked, error)
"""
    path = tmp_path / "traces.db"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    acked, sentence = done.stdout.split(" ", 1)
    assert "make room on the disk" in sentence
    store = SqliteStore(path)
    assert int(acked) > 10
    assert store.high_water(P) == int(acked)
    store.close()


def test_what_is_acknowledged_another_process_reads(store: SqliteStore, path: Path) -> None:
    add(store, whole_rollout("a"))
    script = """
import sys
from pathlib import Path
from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.collector.store.sqlite_read import SqliteReader
for summary, records in SqliteReader(Path(sys.argv[1])).read_rollouts(RolloutQuery()):
    print(summary.rollout_id, len(records))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    ((summary, records),) = store.read_rollouts(ALL)
    assert done.stdout == f"{summary.rollout_id} {len(records)}\n"
