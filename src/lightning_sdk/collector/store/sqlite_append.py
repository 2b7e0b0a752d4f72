"""One transaction of the SQLite store: frames in, rows, tombstones, summaries and acks out.

Everything it knows it read within the transaction, so that one that fails leaves nothing behind, in memory
or on disk.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

from lightning_sdk._proto.ingest_pb2 import Ack, Frame
from lightning_sdk.collector.store.admission import MAX_INT, Admitted, admit, check_producer
from lightning_sdk.collector.store.schema import KINDS
from lightning_sdk.collector.store.summary import RolloutState
from lightning_sdk.errors import WireError
from lightning_sdk.records import Record

_CALL: Final = KINDS["call"]
# Only a producer that joined can have written these: where its Join is missing, something is lost.
_MEMBERS_ONLY: Final = ", ".join(
    str(KINDS[kind])
    for kind in ("rollout_start", "rollout_end", "leave", "scope_start", "scope_end", "call", "tool_call")
)
_MAX_REASON_CHARACTERS: Final = 500

_STATE_NAMES: Final = [field.name for field in fields(RolloutState)]
_state_values: Final = attrgetter(*_STATE_NAMES)
STATE_COLUMNS: Final = ", ".join(_STATE_NAMES)
_SET_STATE: Final = ", ".join(f"{name} = ?" for name in _STATE_NAMES)
_INSERT_ROLLOUT: Final = (
    f"INSERT INTO rollouts ({STATE_COLUMNS}) VALUES ({', '.join('?' * len(_STATE_NAMES))})"
)
_INSERT_RECORD: Final = (
    "INSERT INTO records (producer, seq, checksum, rollout, attempt, kind, call_id, endpoint_call_id, "
    "order_, start_ns, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(slots=True)
class _Source:
    """A producer: up to which number it is here without a gap, and its highest number."""

    no: int
    contiguous: int
    highest: int


@dataclass(slots=True)
class _Touched:
    """A rollout that this transaction adds to."""

    no: int
    state: RolloutState


class AppendTransaction:
    """Between BEGIN and COMMIT, which are the caller's: any number of `append`, then `finish`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._sources: dict[bytes, _Source] = {}
        self._rollouts: dict[str, _Touched] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._tokens_of: set[str] = set()
        self._counts: Counter[str] = Counter()

    def append(self, producer: bytes, frames: Sequence[Frame]) -> Ack:
        """Take one batch. See `Store.append_many`."""
        check_producer(producer)
        ack = Ack(producer=producer)
        if not frames:
            ack.committed_through = self._known_through(producer)
            return ack
        source = self._source(producer)
        for frame in frames:
            seq = frame.seq
            if not 0 < seq <= MAX_INT:
                # There is no such place, so nothing can hold it.
                self._counts["refused"] += 1
                ack.refusals.add(seq=seq, reason="numbers start at 1 and have 63 bits")
            elif seq == source.contiguous + 1 and source.contiguous == source.highest:
                self._place(source, frame, ack)
                source.contiguous = source.highest = seq
            else:
                self._place_out_of_turn(source, frame, ack)
        ack.committed_through = source.contiguous
        return ack

    def finish(self) -> None:
        """Write what was gathered."""
        self._flush_rows()
        self._touch_calls_of_tokens()
        execute = self._connection.execute
        for source in self._sources.values():
            execute(
                "UPDATE producers SET contiguous = ?, highest = ? WHERE no = ?",
                (source.contiguous, source.highest, source.no),
            )
        for touched in self._rollouts.values():
            state = touched.state
            state.revision += 1
            state.complete = state.ended and self._all_left(touched)
            execute(f"UPDATE rollouts SET {_SET_STATE} WHERE no = ?", (*_state_values(state), touched.no))
        for name, value in self._counts.items():
            execute("UPDATE counters SET value = value + ? WHERE name = ?", (value, name))

    def _source(self, producer: bytes) -> _Source:
        source = self._sources.get(producer)
        if source is None:
            row = self._connection.execute(
                "SELECT no, contiguous, highest FROM producers WHERE producer = ?", (producer,)
            ).fetchone()
            if row is None:
                cursor = self._connection.execute("INSERT INTO producers (producer) VALUES (?)", (producer,))
                self._counts["producers"] += 1
                row = (cursor.lastrowid, 0, 0)
            source = self._sources[producer] = _Source(*row)
        return source

    def _known_through(self, producer: bytes) -> int:
        """As `_source(producer).contiguous`, without a row for a producer that has only been asked about."""
        if producer in self._sources:
            return self._sources[producer].contiguous
        return read_high_water(self._connection, producer)

    def _place(self, source: _Source, frame: Frame, ack: Ack) -> None:
        """Fill a place that is known to be empty, with the record or a tombstone."""
        if frame.lost_reason:
            self._bury(source, frame, refused=False, reason=frame.lost_reason)
            self._counts["lost"] += 1
            return
        data = frame.record
        try:
            admitted = admit(data, frame.checksum)
        except WireError as error:
            self._bury(source, frame, refused=True, reason=str(error))
            self._counts["refused"] += 1
            ack.refusals.add(seq=frame.seq, reason=str(error))
            return
        self._store(source, frame, admitted, data)

    def _place_out_of_turn(self, source: _Source, frame: Frame, ack: Ack) -> None:
        """A number that may be taken, or that leaves or closes a gap."""
        self._flush_rows()
        place = (source.no, frame.seq)
        row = self._connection.execute(
            "SELECT checksum FROM records WHERE producer = ? AND seq = ?", place
        ).fetchone()
        if row is not None:
            self._repeat(frame, row[0], ack)
            return
        row = self._connection.execute(
            "SELECT refused, reason FROM tombstones WHERE producer = ? AND seq = ?", place
        ).fetchone()
        if row is not None:
            self._recover(source, frame, ack, refused=bool(row[0]), reason=row[1])
            return
        self._place(source, frame, ack)
        source.highest = max(source.highest, frame.seq)
        if frame.seq == source.contiguous + 1:
            source.contiguous = self._end_of_run(source, frame.seq)

    def _repeat(self, frame: Frame, stored_checksum: int, ack: Ack) -> None:
        if frame.lost_reason or frame.checksum == stored_checksum:
            self._counts["duplicates"] += 1
            return
        self._counts["integrity_errors"] += 1
        ack.refusals.add(
            seq=frame.seq,
            reason=f"another record has this number: its checksum is {stored_checksum:08x}, "
            f"not {frame.checksum:08x}",
        )

    def _recover(self, source: _Source, frame: Frame, ack: Ack, *, refused: bool, reason: str) -> None:
        """A frame for a place that holds a tombstone: the record may have been found after all."""
        data = frame.record
        try:
            admitted = None if frame.lost_reason else admit(data, frame.checksum)
        except WireError:
            admitted = None
        if admitted is None:
            self._counts["duplicates"] += 1
            if refused:
                ack.refusals.add(seq=frame.seq, reason=reason)
            return
        self._connection.execute(
            "DELETE FROM tombstones WHERE producer = ? AND seq = ?", (source.no, frame.seq)
        )
        self._counts["tombstones"] -= 1
        self._counts["recovered"] += 1
        self._store(source, frame, admitted, data)

    def _end_of_run(self, source: _Source, seq: int) -> int:
        """The number before the first gap after `seq`, which is filled."""
        self._flush_rows()
        if seq >= source.highest:
            return seq
        taken = self._connection.execute(
            "SELECT seq FROM records WHERE producer = ?1 AND seq > ?2 "
            "UNION ALL SELECT seq FROM tombstones WHERE producer = ?1 AND seq > ?2 ORDER BY seq",
            (source.no, seq),
        )
        for (next_seq,) in taken:
            if next_seq != seq + 1:
                break
            seq = next_seq
        taken.close()
        return seq

    def _bury(self, source: _Source, frame: Frame, *, refused: bool, reason: str) -> None:
        self._connection.execute(
            "INSERT INTO tombstones (producer, seq, refused, reason) VALUES (?, ?, ?, ?)",
            (source.no, frame.seq, refused, reason[:_MAX_REASON_CHARACTERS]),
        )
        self._counts["tombstones"] += 1

    def _store(self, source: _Source, frame: Frame, admitted: Admitted, data: bytes) -> None:
        record, kind, call_id, endpoint_call_id = admitted
        rollout_no = None
        if record.rollout_id:
            touched = self._touch(record.rollout_id)
            touched.state.apply(record)
            rollout_no = touched.no
            if kind in ("join", "leave"):
                self._note_participant(source, frame, record, rollout_no)
        elif kind == "tokens":
            self._tokens_of.add(call_id)
        else:
            self._counts["unbound"] += 1
        self._counts["records"] += 1
        self._rows.append(
            (
                source.no,
                frame.seq,
                frame.checksum,
                rollout_no,
                record.attempt,
                KINDS[kind],
                call_id or None,
                endpoint_call_id or None,
                record.order,
                record.start_ns,
                data,
            )
        )

    def _flush_rows(self) -> None:
        if self._rows:
            self._connection.executemany(_INSERT_RECORD, self._rows)
            self._rows.clear()

    def _touch(self, rollout_id: str) -> _Touched:
        touched = self._rollouts.get(rollout_id)
        if touched is None:
            row = self._connection.execute(
                f"SELECT no, {STATE_COLUMNS} FROM rollouts WHERE rollout_id = ?", (rollout_id,)
            ).fetchone()
            if row is None:
                state = RolloutState(rollout_id)
                cursor = self._connection.execute(_INSERT_ROLLOUT, _state_values(state))
                self._counts["rollouts"] += 1
                touched = _Touched(int(cursor.lastrowid or 0), state)
            else:
                touched = _Touched(row[0], RolloutState(*row[1:]))
            self._rollouts[rollout_id] = touched
        return touched

    def _touch_calls_of_tokens(self) -> None:
        """Tokens that came after their call belong to its rollout: its revision grows too."""
        for call_id in self._tokens_of:
            rows = self._connection.execute(
                "SELECT rollout_id FROM rollouts WHERE no IN ("
                "SELECT rollout FROM records WHERE call_id = ?1 AND kind = ?2 "
                "UNION SELECT rollout FROM records WHERE endpoint_call_id = ?1 AND kind = ?2)",
                (call_id, _CALL),
            ).fetchall()
            for (rollout_id,) in rows:
                self._touch(rollout_id)

    def _note_participant(self, source: _Source, frame: Frame, record: Record, rollout_no: int) -> None:
        key = (rollout_no, record.attempt, source.no)
        execute = self._connection.execute
        execute("INSERT OR IGNORE INTO participants (rollout, attempt, producer) VALUES (?, ?, ?)", key)
        where = "WHERE rollout = ? AND attempt = ? AND producer = ?"
        if record.HasField("join"):
            execute(f"UPDATE participants SET joined_seq = max(joined_seq, ?) {where}", (frame.seq, *key))
            return
        execute(
            f"UPDATE participants SET left_count = ?, left_seq = ? {where} AND left_seq < ?",
            (min(record.leave.count, MAX_INT), frame.seq, *key, frame.seq),
        )

    def _all_left(self, touched: _Touched) -> bool:
        """Whether all producers that joined the latest attempt have left, with their records here.

        As the assembly decides it.
        """
        of_attempt = (touched.no, touched.state.attempt)
        (joined, waiting) = self._connection.execute(
            "SELECT count(*), total(joined_seq = 0 OR left_seq < joined_seq OR left_count <> ("
            "  SELECT count(*) FROM records WHERE rollout = ?1 AND attempt = ?2"
            "  AND producer = participants.producer AND seq <= left_seq)) "
            "FROM participants WHERE rollout = ?1 AND attempt = ?2",
            of_attempt,
        ).fetchone()
        if waiting or not joined:
            return False
        stranger = self._connection.execute(
            "SELECT 1 FROM records WHERE rollout = ?1 AND attempt = ?2 "
            f"AND kind IN ({_MEMBERS_ONLY}) AND producer NOT IN "
            "(SELECT producer FROM participants WHERE rollout = ?1 AND attempt = ?2) LIMIT 1",
            of_attempt,
        ).fetchone()
        return stranger is None


def read_high_water(connection: sqlite3.Connection, producer: bytes) -> int:
    """See `Store.high_water`."""
    row = connection.execute("SELECT contiguous FROM producers WHERE producer = ?", (producer,)).fetchone()
    return int(row[0]) if row else 0
