"""The tables of the SQLite store, and opening a file that has them, or may get them."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from lightning_sdk.errors import StoreError
from lightning_sdk.records import Record

SCHEMA_VERSION: Final = 3
# "LSDK" in the file's header: this database is ours.
_APPLICATION_ID: Final = 0x4C53444B
_BUSY_TIMEOUT_S: Final = 10.0
_WAL_KEPT_BYTES: Final = 64 << 20
_CACHE_KIB: Final = 32 << 10

COUNTERS: Final = (
    "records",
    "tombstones",
    "rollouts",
    "producers",
    "duplicates",
    "integrity_errors",
    "refused",
    "lost",
    "recovered",
    "unbound",
    "duplicate_spans",
)
# Kinds of records are stored as the field number of their body in records.proto.
KINDS: Final[dict[str, int]] = {
    field.name: field.number for field in Record.DESCRIPTOR.oneofs_by_name["body"].fields
}

# Producers and rollouts have small numbers inside the store, to keep rows and indexes small. The payload
# comes last in its row, so that reading the other columns never touches its overflow pages.
_DDL: Final = """
CREATE TABLE producers (
    no INTEGER PRIMARY KEY,
    producer BLOB NOT NULL UNIQUE,
    contiguous INTEGER NOT NULL DEFAULT 0,  -- every number up to here is a record or a tombstone
    highest INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    producer INTEGER NOT NULL REFERENCES producers,
    seq INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    rollout INTEGER REFERENCES rollouts,
    attempt INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    call_id TEXT,          -- of a call, tool call or tokens
    endpoint_call_id TEXT,
    response_id TEXT,
    span BLOB,             -- of a call or an OTLP span: trace and span id
    order_ INTEGER NOT NULL,
    start_ns INTEGER NOT NULL,
    payload BLOB NOT NULL
);
CREATE UNIQUE INDEX records_by_place ON records (producer, seq);
CREATE INDEX records_by_rollout ON records (rollout) WHERE rollout IS NOT NULL;
CREATE INDEX records_by_call ON records (call_id) WHERE call_id IS NOT NULL;
CREATE INDEX records_by_endpoint_call ON records (endpoint_call_id) WHERE endpoint_call_id IS NOT NULL;
CREATE INDEX records_by_response ON records (response_id) WHERE response_id IS NOT NULL;
CREATE INDEX records_by_span ON records (span) WHERE span IS NOT NULL;
CREATE TABLE named_rewards (               -- rewards that name a call and no rollout
    producer INTEGER NOT NULL REFERENCES producers,
    seq INTEGER NOT NULL,
    name TEXT NOT NULL,                    -- a call id, or else a response id
    rollout INTEGER REFERENCES rollouts,   -- of that call; NULL while no call, or several rollouts, have the id
    attempt INTEGER NOT NULL DEFAULT 0,    -- of that call
    PRIMARY KEY (producer, seq)
) WITHOUT ROWID;
CREATE INDEX named_rewards_by_name ON named_rewards (name);
CREATE INDEX named_rewards_by_rollout ON named_rewards (rollout) WHERE rollout IS NOT NULL;
CREATE TABLE client_counters (             -- what each producer last said that it had counted
    producer INTEGER PRIMARY KEY REFERENCES producers,
    seq INTEGER NOT NULL,
    counted TEXT NOT NULL                  -- JSON object
);
CREATE TABLE tombstones (
    producer INTEGER NOT NULL REFERENCES producers,
    seq INTEGER NOT NULL,
    refused INTEGER NOT NULL,  -- 1: what came was no record; 0: it was lost before it could be sent
    reason TEXT NOT NULL,
    PRIMARY KEY (producer, seq)
) WITHOUT ROWID;
CREATE TABLE rollouts (
    no INTEGER PRIMARY KEY,
    rollout_id TEXT NOT NULL UNIQUE,
    project TEXT NOT NULL,
    run_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    split TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    root_agent TEXT NOT NULL,
    root_start_ns INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    tool_calls INTEGER NOT NULL,
    rewards INTEGER NOT NULL,
    complete INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    started INTEGER NOT NULL,
    assembled INTEGER NOT NULL DEFAULT 0    -- the revision of which `episodes` tells; 0: none
);
CREATE INDEX rollouts_by_start ON rollouts (start_ns);
CREATE INDEX rollouts_to_assemble ON rollouts (no) WHERE complete AND assembled <> revision;
CREATE TABLE episodes (                     -- complete rollouts as they were assembled (mdp/columns.py)
    rollout INTEGER PRIMARY KEY,
    columns BLOB NOT NULL
);
CREATE TABLE participants (
    rollout INTEGER NOT NULL REFERENCES rollouts,
    attempt INTEGER NOT NULL,
    producer INTEGER NOT NULL REFERENCES producers,
    joined_seq INTEGER NOT NULL DEFAULT 0,  -- number of its latest join; 0: none is here
    left_seq INTEGER NOT NULL DEFAULT 0,    -- number of its latest leave; 0: none is here
    left_count INTEGER NOT NULL DEFAULT 0,  -- records that it had written there by then
    PRIMARY KEY (rollout, attempt, producer)
) WITHOUT ROWID;
CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
"""


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the database for its owner; make it where there is none (mode 0600).

    Raises:
        StoreError: not a database, not ours, of another version, or not writable.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(
            f"the store {path} cannot be opened ({error.strerror}): it must be a file that can be written"
        ) from None
    connection = _connect(path)
    try:
        version = _check(connection, path)
        if version == 0:
            connection.execute("PRAGMA page_size=16384")  # twice the ingest rate of 4096
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={_WAL_KEPT_BYTES}")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        if version == 0:
            _create(connection)
    except sqlite3.Error as error:
        connection.close()
        raise store_error(error, path, "opened") from error
    except StoreError:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open the database beside its owner. The connection cannot write.

    Raises:
        StoreError: there is none, or it is none, not ours or of another version.
    """
    if not path.exists():
        raise StoreError(
            f"there is no store at {path}: set LIGHTNING_HOME to the directory that has traces.db"
        )
    connection = _connect(path)
    try:
        if _check(connection, path) == 0:
            raise StoreError(f"the store {path} is empty: it was never opened for writing")
        connection.execute("PRAGMA query_only=ON")
    except sqlite3.Error as error:
        connection.close()
        raise store_error(error, path, "opened") from error
    except StoreError:
        connection.close()
        raise
    return connection


def store_error(error: sqlite3.Error, path: Path, done: str) -> StoreError:
    """Our sentence for an error of SQLite.

    Args:
        error: what SQLite raised.
        path: the database.
        done: what could not be done with it: "opened", "written", "read".
    """
    text = str(error)
    if "full" in text or "disk I/O" in text:
        mend = "make room on the disk; nothing that was not written is acknowledged, so it will be sent again"
    elif "readonly" in text or "unable to open" in text:
        mend = "make the file and its directory writable, or choose another with LIGHTNING_HOME"
    elif "not a database" in text or "malformed" in text:
        mend = "it is not a store of lightning_sdk or is damaged: move it away, and a new one is made"
    elif "locked" in text:
        mend = "another program holds it: close that one"
    else:
        mend = "check it with the sqlite3 shell's PRAGMA integrity_check"
    return StoreError(f"the store {path} cannot be {done} ({text}): {mend}")


def _connect(path: Path) -> sqlite3.Connection:
    # isolation_level=None: transactions are ours to begin and end. Threads are kept apart by the callers'
    # locks.
    return sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def _check(connection: sqlite3.Connection, path: Path) -> int:
    """The schema version of the file; 0 for an empty one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == 0 and application == 0 and tables == 0:
        return 0
    if application != _APPLICATION_ID:
        raise StoreError(
            f"{path} is a database of another program: choose another directory with LIGHTNING_HOME"
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"the store {path} has schema version {version}, and this lightning_sdk knows versions up to "
            f"{SCHEMA_VERSION}: upgrade agent-lightning-sdk"
        )
    if version < SCHEMA_VERSION:
        raise StoreError(
            f"the store {path} has schema version {version}, from before the first release, and this "
            f"lightning_sdk reads version {SCHEMA_VERSION}: move it away, and a new one is made"
        )
    return int(version)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in _DDL.split(";\n"):
        connection.execute(statement)
    connection.executemany("INSERT INTO counters VALUES (?, 0)", [(name,) for name in COUNTERS])
    connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.execute("COMMIT")
