"""The group's mean, and Dr. GRPO, which is it with a loss of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.baseline.cells import By
from lightning_sdk.mdp.baseline.cells import mean as mean_of
from lightning_sdk.mdp.baseline.compare import Baselined, LoneAgent, compare
from lightning_sdk.mdp.table import CallTable


def mean(
    table: CallTable, value_C: NDArray[np.float64], *, by: By = "agent", lone_agent: LoneAgent = "zero"
) -> Baselined:
    """A = value - mean of the entries of the cell, its own among them; (n - 1)/n of leave-one-out for entries.

    Shapes: value_C (C,), and so the results; scale 1.
    Group of one: 0, skipped. Zero variance: all credits of a cell equal: 0, skipped.
    Source: Liu et al., arXiv:2503.20783, its advantage only.
    Deviation: by (group, agent) over rollouts; `by="group"` compares whatever the agent, as published.
    """
    return compare(table, value_C, subtract_mean, by=by, lone_agent=lone_agent)


def dr_grpo(
    table: CallTable, value_C: NDArray[np.float64], *, by: By = "agent", lone_agent: LoneAgent = "zero"
) -> Baselined:
    """A = value - mean of the entries of the cell, as `mean`; the loss has no length normaliser.

    Dr. GRPO drops both the standard deviation and 1/N_i of the loss. So choosing it by this name asks for the
    aggregation "token_sum": (1/R) Σ_i Σ_t loss_t over a constant length. For its advantage under the usual loss
    choose `mean`.

    Shapes, group of one, zero variance, deviation: as `mean`.
    Source: Liu et al., arXiv:2503.20783.
    """
    return mean(table, value_C, by=by, lone_agent=lone_agent)


def subtract_mean(entries: Sequence[float]) -> tuple[Sequence[float], float]:
    """The rule: one mean for all entries, no scale."""
    return [mean_of(entries)] * len(entries), 1.0
