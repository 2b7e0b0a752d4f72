"""MaxRL: deviations relative to the mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.baseline.cells import By, mean
from lightning_sdk.mdp.baseline.compare import Baselined, LoneAgent, compare
from lightning_sdk.mdp.table import CallTable


def max_rl(
    table: CallTable, value_C: NDArray[np.float64], *, by: By = "agent", lone_agent: LoneAgent = "zero"
) -> Baselined:
    """A = (value - mean) / mean over the entries of the cell: the rarer success is, the more one is worth.

    Shapes: value_C (C,), and so the results; the scale is the mean.
    Group of one: 0, skipped. Zero variance: all credits of a cell equal (all failed among them, where the mean is 0):
    0, skipped.
    Raises: ConfigError where a credit is negative, since dividing by a mean would turn signs.
    Source: MaxRL, arXiv:2602.02710.
    Deviation: by (group, agent) over rollouts; `by="group"` compares whatever the agent, as published.
    """
    counting = table.decision_C & table.in_baseline_E[table.episode_C]
    below = np.flatnonzero(counting & (value_C < 0))
    if below.size:
        row = int(below[0])
        raise ConfigError(
            f"max_rl needs credits of at least 0, and {table.name_of(row)} has {value_C[row]}; "
            "shift the rewards, or choose another baseline"
        )

    def rule(entries: Sequence[float]) -> tuple[Sequence[float], float]:
        middle = mean(entries)
        return [middle] * len(entries), middle

    return compare(table, value_C, rule, by=by, lone_agent=lone_agent)
