"""One transaction of the SQLite store: frames in, rows, tombstones, summaries and acks out.

Everything it knows it read within the transaction, so that one that fails leaves nothing behind, in memory
or on disk.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_sdk._proto.ingest_pb2 import Ack, Frame
from lightning_sdk.collector.store.admission import MAX_INT, Admitted, admit, check_producer
from lightning_sdk.collector.store.client_counters import keep_client_counters
from lightning_sdk.collector.store.schema import KINDS
from lightning_sdk.collector.store.sqlite_joins import Joins
from lightning_sdk.collector.store.sqlite_rollouts import TouchedRollouts
from lightning_sdk.errors import WireError

_MAX_REASON_CHARACTERS: Final = 500
_INSERT_RECORD: Final = (
    "INSERT INTO records (producer, seq, checksum, rollout, attempt, kind, call_id, endpoint_call_id, "
    "response_id, span, order_, start_ns, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(slots=True)
class _Source:
    """A producer: up to which number it is here without a gap, and its highest number."""

    no: int
    contiguous: int
    highest: int


class AppendTransaction:
    """Between BEGIN and COMMIT, which are the caller's: any number of `append`, then `finish`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._sources: dict[bytes, _Source] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._counts: Counter[str] = Counter()
        self._rollouts = TouchedRollouts(connection, self._counts)
        self._joins = Joins(connection, self._rollouts, self._counts)

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
        self._joins.settle()
        self._rollouts.write()
        execute = self._connection.execute
        for source in self._sources.values():
            execute(
                "UPDATE producers SET contiguous = ?, highest = ? WHERE no = ?",
                (source.contiguous, source.highest, source.no),
            )
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
            "SELECT seq FROM records WHERE producer = :producer AND seq > :seq "
            "UNION ALL SELECT seq FROM tombstones WHERE producer = :producer AND seq > :seq ORDER BY seq",
            {"producer": source.no, "seq": seq},
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
        record, kind = admitted.record, admitted.kind
        rollout_no = None
        if admitted.rollout_id:
            touched = self._rollouts.touch(admitted.rollout_id)
            self._rollouts.add(touched, record, record.attempt)
            rollout_no = touched.no
            if kind in ("join", "leave"):
                self._rollouts.note_participant(touched, source.no, frame.seq, record)
        elif kind == "counters":
            keep_client_counters(self._connection, source.no, frame.seq, record.counters)
        elif kind != "tokens" and not admitted.call_id:
            self._counts["unbound"] += 1
        self._joins.note(source.no, frame.seq, admitted)
        self._counts["records"] += 1
        self._rows.append(
            (
                source.no,
                frame.seq,
                frame.checksum,
                rollout_no,
                record.attempt,
                KINDS[kind],
                (admitted.call_id or None) if kind != "reward" else None,
                admitted.endpoint_call_id or None,
                admitted.response_id or None,
                admitted.span or None,
                record.order,
                record.start_ns,
                data,
            )
        )

    def _flush_rows(self) -> None:
        if self._rows:
            self._connection.executemany(_INSERT_RECORD, self._rows)
            self._rows.clear()


def read_high_water(connection: sqlite3.Connection, producer: bytes) -> int:
    """See `Store.high_water`."""
    row = connection.execute("SELECT contiguous FROM producers WHERE producer = ?", (producer,)).fetchone()
    return int(row[0]) if row else 0
