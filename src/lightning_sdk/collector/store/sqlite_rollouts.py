"""The rollouts that one transaction of the SQLite store adds to: their summaries and participants."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

from lightning_sdk.collector.store.admission import MAX_INT
from lightning_sdk.collector.store.schema import KINDS
from lightning_sdk.collector.store.summary import RolloutState
from lightning_sdk.mdp.frame import MEMBERS_ONLY
from lightning_sdk.records import Record

_STATE_NAMES: Final = [field.name for field in fields(RolloutState)]
_state_values: Final = attrgetter(*_STATE_NAMES)
STATE_COLUMNS: Final = ", ".join(_STATE_NAMES)
_SET_STATE: Final = ", ".join(f"{name} = ?" for name in _STATE_NAMES)
_INSERT: Final = f"INSERT INTO rollouts ({STATE_COLUMNS}) VALUES ({', '.join('?' * len(_STATE_NAMES))})"
_MEMBERS_ONLY_KINDS: Final = ", ".join(str(KINDS[kind]) for kind in sorted(MEMBERS_ONLY))
# What the summary of an attempt is made of.
_CONTENT: Final = (
    "SELECT kind, call_id, payload FROM records WHERE rollout = :rollout AND attempt IN (0, :attempt) "
    "UNION ALL SELECT r.kind, NULL, r.payload FROM named_rewards n "
    "JOIN records r ON r.producer = n.producer AND r.seq = n.seq "
    "WHERE n.rollout = :rollout AND n.attempt IN (0, :attempt)"
)
_ONCE: Final = frozenset({KINDS["call"], KINDS["tool_call"]})


@dataclass(slots=True)
class Touched:
    """A rollout that this transaction adds to. `stale`: its state must be made anew from the records."""

    no: int
    state: RolloutState
    stale: bool = False


class TouchedRollouts:
    """Between BEGIN and COMMIT: any number of additions, then `write`."""

    def __init__(self, connection: sqlite3.Connection, counts: Counter[str]) -> None:
        self._connection = connection
        self._counts = counts
        self._touched: dict[str, Touched] = {}

    def touch(self, rollout_id: str) -> Touched:
        """The rollout, whose revision will grow; it is made if there is none."""
        touched = self._touched.get(rollout_id)
        if touched is None:
            row = self._connection.execute(
                f"SELECT no, {STATE_COLUMNS} FROM rollouts WHERE rollout_id = ?", (rollout_id,)
            ).fetchone()
            if row is None:
                state = RolloutState(rollout_id)
                cursor = self._connection.execute(_INSERT, _state_values(state))
                self._counts["rollouts"] += 1
                touched = Touched(int(cursor.lastrowid or 0), state)
            else:
                touched = Touched(row[0], RolloutState(*row[1:]))
            self._touched[rollout_id] = touched
        return touched

    def touch_no(self, no: int) -> Touched:
        """As `touch`, of a rollout that is there, by its number."""
        (rollout_id,) = self._connection.execute(
            "SELECT rollout_id FROM rollouts WHERE no = ?", (no,)
        ).fetchone()
        return self.touch(rollout_id)

    def add(self, touched: Touched, record: Record, attempt: int) -> None:
        """Take a record of an attempt (0: of none) into account. Of an earlier attempt it changes nothing."""
        if attempt > touched.state.attempt:
            touched.state.attempt, touched.stale = attempt, True
        elif attempt in (0, touched.state.attempt) and not touched.stale:
            touched.state.apply(record)

    def note_participant(self, touched: Touched, producer_no: int, seq: int, record: Record) -> None:
        """Remember a join or leave."""
        key = (touched.no, record.attempt, producer_no)
        execute = self._connection.execute
        execute("INSERT OR IGNORE INTO participants (rollout, attempt, producer) VALUES (?, ?, ?)", key)
        where = "WHERE rollout = ? AND attempt = ? AND producer = ?"
        if record.HasField("join"):
            execute(f"UPDATE participants SET joined_seq = max(joined_seq, ?) {where}", (seq, *key))
            return
        execute(
            f"UPDATE participants SET left_count = ?, left_seq = ? {where} AND left_seq < ?",
            (min(record.leave.count, MAX_INT), seq, *key, seq),
        )

    def write(self) -> None:
        """Write the summaries. All records must be in their rows."""
        for touched in self._touched.values():
            if touched.stale and not self._rebuild(touched):
                continue
            state = touched.state
            state.revision += 1
            state.complete = state.ended and self._all_left(touched)
            self._connection.execute(
                f"UPDATE rollouts SET {_SET_STATE} WHERE no = ?", (*_state_values(state), touched.no)
            )

    def _rebuild(self, touched: Touched) -> bool:
        """Make the state anew; False: nothing is left of the rollout, and it is gone."""
        execute = self._connection.execute
        records, attempt = execute(
            "SELECT count(*), max(attempt) FROM records WHERE rollout = ?", (touched.no,)
        ).fetchone()
        if not records:
            execute("DELETE FROM rollouts WHERE no = ?", (touched.no,))
            self._counts["rollouts"] -= 1
            return False
        old = touched.state
        touched.state = RolloutState(old.rollout_id, attempt=attempt or 1, revision=old.revision)
        told = set()
        for kind, call_id, payload in execute(
            _CONTENT, {"rollout": touched.no, "attempt": touched.state.attempt}
        ):
            again = kind in _ONCE and (kind, call_id) in told
            touched.state.apply(Record.FromString(payload), again=again)
            if call_id is not None:
                told.add((kind, call_id))
        return True

    def _all_left(self, touched: Touched) -> bool:
        """Whether all producers that joined the latest attempt have left, with their records here.

        As the assembly decides it.
        """
        of_attempt = {"rollout": touched.no, "attempt": touched.state.attempt}
        (joined, waiting) = self._connection.execute(
            "SELECT total(joined_seq > 0), total(joined_seq = 0 OR left_seq < joined_seq OR left_count <> ("
            "  SELECT count(*) FROM records WHERE rollout = :rollout AND attempt = :attempt"
            "  AND producer = participants.producer AND seq <= left_seq)) "
            "FROM participants WHERE rollout = :rollout AND attempt = :attempt",
            of_attempt,
        ).fetchone()
        if waiting or not joined:
            return False
        stranger = self._connection.execute(
            "SELECT 1 FROM records WHERE rollout = :rollout AND attempt = :attempt "
            f"AND kind IN ({_MEMBERS_ONLY_KINDS}) AND producer NOT IN "
            "(SELECT producer FROM participants WHERE rollout = :rollout AND attempt = :attempt) LIMIT 1",
            of_attempt,
        ).fetchone()
        return stranger is None
