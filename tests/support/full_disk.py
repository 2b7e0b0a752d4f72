"""A disk without room, as SQLite sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightning_sdk.collector.store.sqlite import SqliteStore


@contextmanager
def full_disk(store: SqliteStore) -> Iterator[None]:
    """While it lasts the store's file cannot grow: SQLite answers "database or disk is full"."""
    connection = store._open()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA max_page_count={(1 << 32) - 2}")
