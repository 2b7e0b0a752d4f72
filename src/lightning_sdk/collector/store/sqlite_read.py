"""The read side of the SQLite store: short read transactions beside the writer, none longer than one page."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightning_sdk._proto.read_pb2 import RolloutQuery, RolloutRecords, RolloutSummary, Stats
from lightning_sdk.collector.store.base import SourcedRollout, decode_columns
from lightning_sdk.collector.store.client_counters import sum_client_counters
from lightning_sdk.collector.store.schema import KINDS, SCHEMA_VERSION, open_reader, store_error
from lightning_sdk.collector.store.sqlite_episodes import MadeEpisode, find_to_assemble, read_kept
from lightning_sdk.collector.store.sqlite_rollouts import STATE_COLUMNS
from lightning_sdk.collector.store.summary import RolloutState
from lightning_sdk.errors import WireError
from lightning_sdk.mdp import Episode, assemble
from lightning_sdk.mdp.columns import can_decode, encode_episode
from lightning_sdk.records import SourcedRecord, parse_record

_log = logging.getLogger(__name__)

_PAGE_ROLLOUTS: Final = 256
# Greater than every character that may follow a prefix.
_LAST_CHARACTER: Final = "\U0010ffff"

_RECORDS: Final = (
    "SELECT p.producer, r.seq, r.payload FROM records r JOIN producers p ON p.no = r.producer "
    "WHERE r.rollout = ? ORDER BY r.start_ns, r.order_, r.producer, r.seq"
)
_TOKENS: Final = (
    "SELECT p.producer, t.seq, t.payload FROM records t JOIN producers p ON p.no = t.producer "
    "WHERE t.kind = :tokens AND t.call_id IN ("
    "SELECT call_id FROM records WHERE rollout = :no AND kind = :call AND call_id IS NOT NULL "
    "UNION SELECT endpoint_call_id FROM records WHERE rollout = :no AND kind = :call "
    "AND endpoint_call_id IS NOT NULL) ORDER BY t.start_ns, t.order_, t.producer, t.seq"
)
_NAMED_REWARDS: Final = (
    "SELECT p.producer, r.seq, r.payload FROM named_rewards n "
    "JOIN records r ON r.producer = n.producer AND r.seq = n.seq JOIN producers p ON p.no = n.producer "
    "WHERE n.rollout = ? ORDER BY r.start_ns, r.order_, r.producer, r.seq"
)


class SqliteReader:
    """Reads a store that this or another process may be writing. See `RecordReader`.

    Each iterator has a connection of its own, so that iterators never wait for each other or for the writer.

    Raises:
        StoreError: there is no store that this version can read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        open_reader(path).close()

    def list_rollouts(self, query: RolloutQuery) -> Iterator[RolloutSummary]:
        """See `RecordReader.list_rollouts`."""
        with closing(open_reader(self._path)) as connection:
            numbers = self._matching(connection, query)
            for first in range(0, len(numbers), _PAGE_ROLLOUTS):
                page = numbers[first : first + _PAGE_ROLLOUTS]
                states = self._states(connection, page)
                yield from (states[no].to_message() for no in page if no in states)

    def read_rollouts(self, query: RolloutQuery) -> Iterator[SourcedRollout]:
        """See `RecordReader.read_rollouts`."""
        with closing(open_reader(self._path)) as connection:
            for no in reversed(self._matching(connection, query)):
                for rollout in self._read(connection, no):
                    yield rollout.state.to_message(), rollout.sourced()

    def read_episodes(self, query: RolloutQuery) -> Iterator[Episode]:
        """See `RecordReader.read_episodes`."""
        with closing(open_reader(self._path)) as connection:
            for no, columns in self._kept(connection, query):
                if columns is not None:
                    yield decode_columns(columns, self)
                else:
                    for rollout in self._read(connection, no):
                        yield from assemble(rollout.sourced())

    def read_stored(self, query: RolloutQuery) -> Iterator[RolloutRecords]:
        """See `Store.read_stored`."""
        with closing(open_reader(self._path)) as connection:
            if query.episode_code and can_decode(query.episode_code):
                stored: Iterable[tuple[int, bytes | None]] = self._kept(connection, query)
            else:
                stored = ((no, None) for no in reversed(self._matching(connection, query)))
            for no, columns in stored:
                if columns is not None:
                    yield RolloutRecords(episode=columns)
                else:
                    yield from (rollout.to_message() for rollout in self._read(connection, no))

    def make_episodes(self, limit: int) -> list[MadeEpisode]:
        """Episodes of complete rollouts that are not kept as they are now, each of one moment."""
        with closing(open_reader(self._path)) as connection:
            try:
                numbers = find_to_assemble(connection, limit)
            except sqlite3.Error as error:
                raise store_error(error, self._path, "read") from error
            return [
                MadeEpisode(no, rollout.state.revision, _lay_out(rollout))
                for no in numbers
                for rollout in self._read(connection, no)
            ]

    def stats(self) -> Stats:
        """See `RecordReader.stats`."""
        with closing(open_reader(self._path)) as connection:
            try:
                counters = dict(connection.execute("SELECT name, value FROM counters").fetchall())
                counters.update(sum_client_counters(connection))
            except sqlite3.Error as error:
                raise store_error(error, self._path, "read") from error
        return Stats(counters=counters, store=str(self._path), schema_version=SCHEMA_VERSION)

    def close(self) -> None:
        """Nothing is held: an iterator closes its own connection when it ends or is closed."""

    def _matching(self, connection: sqlite3.Connection, query: RolloutQuery) -> list[int]:
        """Numbers of the rollouts that the query asks for, newest first."""
        conditions, values = _conditions(query)
        limit = query.limit or -1
        try:
            rows = connection.execute(
                f"SELECT no FROM rollouts WHERE {conditions} ORDER BY start_ns DESC, no DESC LIMIT :limit",
                {**values, "limit": limit},
            ).fetchall()
        except sqlite3.Error as error:
            raise store_error(error, self._path, "read") from error
        return [no for (no,) in rows]

    def _kept(
        self, connection: sqlite3.Connection, query: RolloutQuery
    ) -> Iterator[tuple[int, bytes | None]]:
        """Rollouts that the query asks for, oldest first, with their columns where some are kept."""
        numbers = self._matching(connection, query)[::-1]
        try:
            yield from read_kept(connection, numbers)
        except sqlite3.Error as error:
            raise store_error(error, self._path, "read") from error

    def _read(self, connection: sqlite3.Connection, no: int) -> list[_StoredRollout]:
        """A rollout; none where it is gone."""
        try:
            rollout = _read_rollout(connection, no)
        except sqlite3.Error as error:
            raise store_error(error, self._path, "read") from error
        return [] if rollout is None else [rollout]

    def _states(self, connection: sqlite3.Connection, numbers: list[int]) -> dict[int, RolloutState]:
        marks = ", ".join("?" * len(numbers))
        try:
            rows = connection.execute(
                f"SELECT no, {STATE_COLUMNS} FROM rollouts WHERE no IN ({marks})", numbers
            ).fetchall()
        except sqlite3.Error as error:
            raise store_error(error, self._path, "read") from error
        return {row[0]: RolloutState(*row[1:]) for row in rows}


def _conditions(query: RolloutQuery) -> tuple[str, dict[str, Any]]:
    conditions = ["1"]
    values: dict[str, Any] = {}
    for name in ("project", "run_id", "task_id"):
        value = getattr(query, name)
        if value:
            conditions.append(f"{name} = :{name}")
            values[name] = value
    # One parameter for any number of prefixes; each is a range of an index.
    if query.rollout_id_prefixes:
        conditions.append(
            "no IN (SELECT found.no FROM json_each(:prefixes) AS prefix CROSS JOIN rollouts AS found "
            "ON found.rollout_id >= prefix.value AND found.rollout_id < prefix.value || :last)"
        )
        values |= {"prefixes": _with_kind(query.rollout_id_prefixes, "ro_"), "last": _LAST_CHARACTER}
    if query.call_id_prefixes:
        conditions.append(
            "no IN (SELECT call.rollout FROM json_each(:calls) AS prefix CROSS JOIN records AS call "
            "ON call.call_id >= prefix.value AND call.call_id < prefix.value || :last "
            "WHERE call.kind = :call AND call.rollout IS NOT NULL)"
        )
        values |= {
            "calls": _with_kind(query.call_id_prefixes, "ca_"),
            "last": _LAST_CHARACTER,
            "call": KINDS["call"],
        }
    return " AND ".join(conditions), values


def _with_kind(beginnings: Iterable[str], kind: str) -> str:
    """Beginnings of ids, with and without the kind that may be left out, as JSON."""
    given = set(beginnings)
    return json.dumps(sorted(given | {kind + each for each in given if not each.startswith(kind)}))


class _StoredRollout(NamedTuple):
    """A rollout of one moment: its state, and its records as (producer, seq, serialized record)."""

    state: RolloutState
    rows: list[tuple[bytes, int, bytes]]

    def to_message(self) -> RolloutRecords:
        """As it crosses the wire."""
        message = RolloutRecords(summary=self.state.to_message())
        for producer, seq, payload in self.rows:
            message.records.add(producer=producer, seq=seq, record=payload)
        return message

    def sourced(self) -> list[SourcedRecord]:
        """Its records, parsed.

        Raises:
            WireError: a record that this version cannot read.
        """
        return [SourcedRecord(producer, seq, parse_record(payload)) for producer, seq, payload in self.rows]


def _read_rollout(connection: sqlite3.Connection, no: int) -> _StoredRollout | None:
    connection.execute("BEGIN")
    try:
        row = connection.execute(f"SELECT {STATE_COLUMNS} FROM rollouts WHERE no = ?", (no,)).fetchone()
        if row is None:
            return None
        kinds = {"no": no, "call": KINDS["call"], "tokens": KINDS["tokens"]}
        rows = connection.execute(_RECORDS, (no,)).fetchall()
        rows += connection.execute(_NAMED_REWARDS, (no,))
        rows += connection.execute(_TOKENS, kinds)
        return _StoredRollout(RolloutState(*row), rows)
    finally:
        connection.execute("COMMIT")


def _lay_out(rollout: _StoredRollout) -> bytes | None:
    try:
        episodes = assemble(rollout.sourced())
        return encode_episode(episodes[0]) if len(episodes) == 1 else None
    except WireError:
        return None
    except Exception:
        # A fault of ours, which readers meet where they assemble: it must not keep others from being laid out.
        _log.exception("a rollout cannot be laid out, and is left to its readers to assemble")
        return None
