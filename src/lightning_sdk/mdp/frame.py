"""How a rollout began and ended: rules for the assembly and for the store's summaries, which must agree.

Each rule chooses by values, so that neither the order of arrival nor the place in the spool matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from lightning_sdk.mdp.episode import RolloutOutcome
from lightning_sdk.records import Outcome, Record

# Records that only a producer which joined can have written: without its Join something is missing.
MEMBERS_ONLY: Final = frozenset(
    {"rollout_start", "rollout_end", "leave", "scope_start", "scope_end", "call", "tool_call"}
)
# Records that tell of no rollout, whatever rollout they name.
ROLLOUTLESS: Final = frozenset({"tokens", "counters"})

_OUTCOMES: Final[Mapping[int, RolloutOutcome]] = {
    Outcome.OUTCOME_OK: "succeeded",
    Outcome.OUTCOME_ERROR: "failed",
    Outcome.OUTCOME_CANCELLED: "cancelled",
    Outcome.OUTCOME_CLOSED_EARLY: "cancelled",
    Outcome.OUTCOME_ABANDONED: "cancelled",
}


def outcome_of(end: Record) -> RolloutOutcome:
    """How a rollout ended, by its RolloutEnd. An ending that this version does not know is as good as none.

    What cut a rollout off says more than how its agent took it.
    """
    if end.rollout_end.truncation_reason:
        return "truncated"
    return _OUTCOMES.get(end.rollout_end.outcome, "lost")


def start_key(start: Record) -> tuple[Any, ...]:
    """Of several RolloutStarts in one attempt the one with the smallest key counts: the earliest."""
    begun = start.rollout_start
    return start.start_ns, begun.project, begun.run_id, begun.task_id, begun.split


def end_key(end: Record) -> tuple[bool, int, RolloutOutcome]:
    """Of several RolloutEnds in one attempt the one with the largest key counts: the latest.

    But one that says "lost" counts only where no other came: whoever wrote it knew of none.
    """
    outcome = outcome_of(end)
    return outcome != "lost", end.end_ns, outcome


def is_reward(record: Record) -> bool:
    """Whether a record is a reward. One with a value that is no finite number is none."""
    return record.HasField("reward") and all(
        math.isfinite(component.value) for component in record.reward.components
    )
