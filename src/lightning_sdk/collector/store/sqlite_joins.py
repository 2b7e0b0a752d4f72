"""What belongs together by ids, whatever comes first: settled at the end of each transaction.

The rules are those of `lightning_sdk.mdp.joining`.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from typing import Final

from lightning_sdk.collector.store.admission import Admitted
from lightning_sdk.collector.store.schema import KINDS
from lightning_sdk.collector.store.sqlite_rollouts import TouchedRollouts
from lightning_sdk.records import Record

_CALL: Final = KINDS["call"]
_TOOL_CALL: Final = KINDS["tool_call"]
_OTEL_SPAN: Final = KINDS["otel_span"]
_AMONG: Final = "IN (SELECT value FROM json_each(?))"
_Place = tuple[int, int]


class Joins:
    """Gathers the ids of a transaction's records, then looks for what they belong to."""

    def __init__(
        self, connection: sqlite3.Connection, rollouts: TouchedRollouts, counts: Counter[str]
    ) -> None:
        self._connection = connection
        self._rollouts = rollouts
        self._counts = counts
        self._tokens_of: set[str] = set()
        # Of calls and tool calls: ids of their own. Of calls: also those of their responses.
        self._own_ids: set[str] = set()
        self._response_ids: set[str] = set()
        self._named: dict[_Place, str] = {}
        self._spans: set[bytes] = set()

    def note(self, producer_no: int, seq: int, admitted: Admitted) -> None:
        """Remember what a new record may belong to, or what may belong to it."""
        kind = admitted.kind
        if admitted.span:
            self._spans.add(admitted.span)
        if kind == "call" or kind == "tool_call":
            if admitted.rollout_id and admitted.call_id:
                self._own_ids.add(admitted.call_id)
            if admitted.rollout_id and admitted.response_id:
                self._response_ids.add(admitted.response_id)
        elif kind == "tokens":
            self._tokens_of.add(admitted.call_id)
        elif kind == "reward" and admitted.call_id:
            self._named[producer_no, seq] = admitted.call_id

    def settle(self) -> None:
        """Join. All records must be in their rows."""
        self._touch_calls_of_tokens()
        self._leave_out_duplicate_spans()
        self._recount_repeats()
        self._join_named_rewards()

    def _touch_calls_of_tokens(self) -> None:
        """Tokens that came after their call belong to its rollout: its revision grows too."""
        for call_id in self._tokens_of:
            rows = self._connection.execute(
                "SELECT rollout FROM records WHERE call_id = :call_id AND kind = :kind AND rollout IS NOT NULL "
                "UNION SELECT rollout FROM records "
                "WHERE endpoint_call_id = :call_id AND kind = :kind AND rollout IS NOT NULL",
                {"call_id": call_id, "kind": _CALL},
            ).fetchall()
            for (no,) in rows:
                self._rollouts.touch_no(no)

    def _leave_out_duplicate_spans(self) -> None:
        """A span of one of our own calls stays stored, so that a retry is known, but belongs to no rollout."""
        for span in self._spans:
            rows = self._connection.execute(
                "SELECT rollout FROM records WHERE span = :span AND kind = :otel_span AND rollout IS NOT NULL "
                "AND EXISTS (SELECT 1 FROM records WHERE span = :span AND kind = :call)",
                {"span": span, "otel_span": _OTEL_SPAN, "call": _CALL},
            ).fetchall()
            for (no,) in rows:
                self._rollouts.touch_no(no).stale = True
            if rows:
                self._counts["duplicate_spans"] += len(rows)
                self._connection.execute(
                    "UPDATE records SET rollout = NULL WHERE span = ? AND kind = ? AND rollout IS NOT NULL",
                    (span, _OTEL_SPAN),
                )

    def _recount_repeats(self) -> None:
        """A call or tool call that was recorded twice counts once."""
        if not self._own_ids:
            return
        rows = self._connection.execute(
            f"SELECT DISTINCT rollout FROM records WHERE call_id {_AMONG} "
            f"AND kind IN ({_CALL}, {_TOOL_CALL}) AND rollout IS NOT NULL "
            "GROUP BY call_id, kind, rollout HAVING count(*) > 1",
            (_json(self._own_ids),),
        ).fetchall()
        for (no,) in rows:
            self._rollouts.touch_no(no).stale = True

    def _join_named_rewards(self) -> None:
        execute = self._connection.execute
        for place, name in self._named.items():
            execute("INSERT INTO named_rewards (producer, seq, name) VALUES (?, ?, ?)", (*place, name))
        self._counts["unbound"] += len(self._named)
        names = set(self._named.values())
        if execute("SELECT 1 FROM named_rewards LIMIT 1").fetchone() is not None:
            known = execute(
                f"SELECT DISTINCT name FROM named_rewards WHERE name {_AMONG}",
                (_json(self._own_ids | self._response_ids),),
            )
            names.update(name for (name,) in known.fetchall())
        for name in names:
            self._join_rewards_of(name)

    def _join_rewards_of(self, name: str) -> None:
        rollout, attempt = self._find_call(name)
        moved = self._connection.execute(
            "SELECT n.producer, n.seq, n.rollout, r.payload FROM named_rewards n "
            "JOIN records r ON r.producer = n.producer AND r.seq = n.seq "
            "WHERE n.name = ? AND (n.rollout, n.attempt) IS NOT (?, ?)",
            (name, rollout, attempt),
        ).fetchall()
        for producer_no, seq, before, payload in moved:
            self._connection.execute(
                "UPDATE named_rewards SET rollout = ?, attempt = ? WHERE producer = ? AND seq = ?",
                (rollout, attempt, producer_no, seq),
            )
            self._counts["unbound"] += (before is not None) - (rollout is not None)
            if before is not None:
                self._rollouts.touch_no(before).stale = True
            if rollout is not None:
                touched = self._rollouts.touch_no(rollout)
                self._rollouts.add(touched, Record.FromString(payload), attempt)

    def _find_call(self, name: str) -> tuple[int | None, int]:
        """The rollout of the call with this id, or else of the only ones with this response id; the attempt."""
        for column in ("call_id", "response_id"):
            places = self._connection.execute(
                f"SELECT rollout, max(attempt) FROM records "
                f"WHERE {column} = ? AND kind = ? AND rollout IS NOT NULL GROUP BY rollout LIMIT 2",
                (name, _CALL),
            ).fetchall()
            if places:
                return places[0] if len(places) == 1 else (None, 0)
        return None, 0


def _json(values: Iterable[str]) -> str:
    return json.dumps(list(values))
