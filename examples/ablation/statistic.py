"""What the configurations need beside what is built in: statistics over rows, and what names a state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.baseline import NO_VARIANCE, Baselined
from lightning_sdk.mdp.episode import Transition
from lightning_sdk.mdp.table import CallTable


def mean_over_rows(table: CallTable, value_C: NDArray[np.float64]) -> Baselined:
    """Advantage = value - mean over all calls of the group: a rollout weighs as much as it has calls.

    That is what becomes of GRPO where each call is handed to a trainer as a sample of its own. Groups in which all
    calls are worth the same are skipped, as the built-in baselines do.
    """
    counts_C = table.decision_C & table.in_baseline_E[table.episode_C]
    baseline_C = np.full(table.calls, np.nan)
    reason_C: list[str | None] = [None] * table.calls
    skipped: list[tuple[str, str | None, str]] = []
    for group, of in enumerate(table.groups):
        rows = np.flatnonzero(counts_C & (table.group_C == group))
        if not rows.size:
            continue
        values = value_C[rows]
        if (values == values[0]).all():
            baseline_C[rows] = values
            skipped.append((of.group_id, None, NO_VARIANCE))
            for row in rows:
                reason_C[row] = NO_VARIANCE
        else:
            baseline_C[rows] = values.mean()
    return Baselined(
        advantage_C=value_C - baseline_C,
        baseline_C=baseline_C,
        scale_C=np.ones(table.calls),
        reason_C=tuple(reason_C),
        skipped=tuple(skipped),
        counts={"groups_no_variance": len(skipped)},
    )


def state(transition: Transition) -> tuple[str, bool]:
    """How far the agent has got, which is what the last search that led on gave, and whether it erred since."""
    told = [
        str(message["content"]) for message in transition.observation["messages"] if message["role"] == "user"
    ]
    return next(text for text in reversed(told) if text != "error"), told[-1] == "error"
