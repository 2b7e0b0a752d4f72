"""The store of a single machine: one SQLite file in WAL mode.

- One writer; a transaction is on the disk when it is acknowledged (synchronous=FULL).
- Group commit is what makes that fast: `append_many` puts many batches into one transaction.
- Readers have connections of their own and never hold up the writer, nor it them.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightning_sdk._proto.ingest_pb2 import Ack, Frame
from lightning_sdk._proto.read_pb2 import RolloutQuery, RolloutRecords, RolloutSummary, Stats
from lightning_sdk.collector.store.admission import check_producer
from lightning_sdk.collector.store.base import Batch, SourcedRollout
from lightning_sdk.collector.store.ownership import Ownership
from lightning_sdk.collector.store.schema import open_writer, store_error
from lightning_sdk.collector.store.sqlite_append import AppendTransaction, read_high_water
from lightning_sdk.collector.store.sqlite_episodes import forget_foreign, keep
from lightning_sdk.collector.store.sqlite_read import SqliteReader
from lightning_sdk.errors import StoreError
from lightning_sdk.mdp import Episode


class SqliteStore:
    """See `Store`. Made where there is none; its directory must exist.

    Raises:
        StoreBusyError: another process owns it.
        StoreError: it cannot be opened: not a database, another program's, of another version, not writable.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._ownership = Ownership(path)
        try:
            self._connection: sqlite3.Connection | None = open_writer(path)
            forget_foreign(self._connection)
            self._reader = SqliteReader(path)
        except StoreError:
            self._ownership.release()
            raise

    def append(self, producer: bytes, frames: Sequence[Frame]) -> Ack:
        """See `Store.append`."""
        return self.append_many([(producer, frames)])[0]

    def append_many(self, batches: Sequence[Batch]) -> list[Ack]:
        """See `Store.append_many`."""
        with self._lock:
            connection = self._open()
            try:
                connection.execute("BEGIN IMMEDIATE")
                transaction = AppendTransaction(connection)
                acks = [transaction.append(producer, frames) for producer, frames in batches]
                transaction.finish()
                connection.execute("COMMIT")
            except BaseException as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise store_error(error, self._path, "written") from error
                raise
        return acks

    def high_water(self, producer: bytes) -> int:
        """See `Store.high_water`."""
        check_producer(producer)
        with self._lock:
            try:
                return read_high_water(self._open(), producer)
            except sqlite3.Error as error:
                raise store_error(error, self._path, "read") from error

    def list_rollouts(self, query: RolloutQuery) -> Iterator[RolloutSummary]:
        """See `RecordReader.list_rollouts`."""
        return self._reader.list_rollouts(query)

    def read_rollouts(self, query: RolloutQuery) -> Iterator[SourcedRollout]:
        """See `RecordReader.read_rollouts`."""
        return self._reader.read_rollouts(query)

    def read_episodes(self, query: RolloutQuery) -> Iterator[Episode]:
        """See `RecordReader.read_episodes`."""
        return self._reader.read_episodes(query)

    def keep_episodes(self, limit: int) -> int:
        """See `Store.keep_episodes`."""
        # Assembled without the lock: what joins a rollout meanwhile makes its episode one of an earlier revision.
        made = self._reader.make_episodes(limit)
        if made:
            with self._lock:
                connection = self._open()
                try:
                    keep(connection, made)
                except BaseException as error:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    if isinstance(error, sqlite3.Error):
                        raise store_error(error, self._path, "written") from error
                    raise
        return len(made)

    def read_stored(self, query: RolloutQuery) -> Iterator[RolloutRecords]:
        """See `Store.read_stored`."""
        return self._reader.read_stored(query)

    def stats(self) -> Stats:
        """See `RecordReader.stats`."""
        return self._reader.stats()

    def close(self) -> None:
        """See `RecordReader.close`. Others may own the store afterwards."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                self._ownership.release()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"the store {self._path} is closed: open it again")
        return self._connection
