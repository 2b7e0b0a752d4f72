"""Episodes in the SQLite store: each complete rollout is assembled once, and kept as columns (mdp/columns.py).

What is kept is of one revision of its rollout: whatever joins the rollout later raises the revision, and from then on
what is kept does not count. So it is a copy that no reader depends on.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lightning_sdk.mdp.columns import can_decode

_KEPT: Final = (
    "SELECT r.no, e.columns FROM rollouts r JOIN episodes e ON e.rollout = r.no "
    "WHERE r.assembled = r.revision AND r.no IN (SELECT value FROM json_each(?))"
)
_TO_ASSEMBLE: Final = "SELECT no FROM rollouts WHERE complete AND assembled <> revision LIMIT ?"
# So many columns are in memory at once.
_PAGE_ROLLOUTS: Final = 64


class MadeEpisode(NamedTuple):
    """A rollout's episode, of one revision; without columns where it cannot be kept."""

    rollout_no: int
    revision: int
    columns: bytes | None


def read_kept(connection: sqlite3.Connection, numbers: Sequence[int]) -> Iterator[tuple[int, bytes | None]]:
    """Each rollout with its columns, where there are some that this code can read."""
    for first in range(0, len(numbers), _PAGE_ROLLOUTS):
        page = numbers[first : first + _PAGE_ROLLOUTS]
        kept = dict(connection.execute(_KEPT, (json.dumps(page),)).fetchall())
        for no in page:
            columns = kept.get(no)
            yield no, columns if columns is not None and can_decode(columns) else None


def find_to_assemble(connection: sqlite3.Connection, limit: int) -> list[int]:
    """Numbers of complete rollouts whose episode is not kept as they are now."""
    return [no for (no,) in connection.execute(_TO_ASSEMBLE, (limit,))]


def keep(connection: sqlite3.Connection, made: Sequence[MadeEpisode]) -> None:
    """Write columns, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for each in made:
        if each.columns is None:
            connection.execute("DELETE FROM episodes WHERE rollout = ?", (each.rollout_no,))
        else:
            connection.execute(
                "INSERT OR REPLACE INTO episodes VALUES (?, ?)", (each.rollout_no, each.columns)
            )
        connection.execute("UPDATE rollouts SET assembled = ? WHERE no = ?", (each.revision, each.rollout_no))
    connection.execute("COMMIT")


def forget_foreign(connection: sqlite3.Connection) -> None:
    """Drop what other code assembled, so that it is assembled anew. For the owner of the store."""
    row = connection.execute("SELECT columns FROM episodes LIMIT 1").fetchone()
    if row is not None and not can_decode(row[0]):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM episodes")
        connection.execute("UPDATE rollouts SET assembled = 0")
        connection.execute("COMMIT")
