"""Calls and tool calls that were recorded twice, as by a process and a child forked while they lasted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from lightning_sdk.records import Outcome, SourcedRecord

# Whoever saw the end knows best; whoever only dropped what it had inherited knows least.
_RANKS: Final[Mapping[int, int]] = {
    Outcome.OUTCOME_OK: 0,
    Outcome.OUTCOME_ERROR: 1,
    Outcome.OUTCOME_CLOSED_EARLY: 2,
}
_LAST_RANK: Final = 3


def without_repeats(ordered: Sequence[SourcedRecord]) -> tuple[list[SourcedRecord], Counter[str]]:
    """The records of one rollout with each call and tool call once, and how many others there were.

    Of several with one id the best outcome counts, of equal ones the first.

    Args:
        ordered: in order. Calls without an id are never repeats.

    Returns:
        The records that count, in order; the others by "duplicate_call" and "duplicate_tool_call".
    """
    best: dict[tuple[str, str], tuple[int, int]] = {}
    repeats: dict[int, tuple[str, str]] = {}
    for at, item in enumerate(ordered):
        kind = item.record.WhichOneof("body") or ""
        if kind == "call":
            name, outcome = item.record.call.call_id, item.record.call.outcome
        elif kind == "tool_call":
            name, outcome = item.record.tool_call.tool_call_id, item.record.tool_call.outcome
        else:
            continue
        if name:
            key, found = (kind, name), (_RANKS.get(outcome, _LAST_RANK), at)
            if key in best:
                repeats[max(best[key], found)[1]] = key
                found = min(best[key], found)
            best[key] = found
    if not repeats:
        return list(ordered), Counter()
    kept = [item for at, item in enumerate(ordered) if at not in repeats]
    return kept, Counter(f"duplicate_{kind}" for kind, _ in repeats.values())
