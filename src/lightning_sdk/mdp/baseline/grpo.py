"""Mean and standard deviation of the group: GRPO, and by agent Dr. MAS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.baseline.cells import By, check_deviation, mean, standard_deviation
from lightning_sdk.mdp.baseline.compare import Baselined, LoneAgent, compare
from lightning_sdk.mdp.table import CallTable


def grpo(
    table: CallTable,
    value_C: NDArray[np.float64],
    *,
    ddof: int = 1,
    epsilon: float = 1e-6,
    by: By = "agent",
    lone_agent: LoneAgent = "zero",
) -> Baselined:
    """A = (value - mean) / (std + ε) over the entries of the cell; std with n - ddof, ddof 1 (as torch.std).

    Shapes: value_C (C,), and so the results.
    Group of one: 0, skipped (verl and others give it its raw reward). Zero variance: entries all equal: 0, skipped,
    also where calls within the rollouts differ, since there is no scale to divide them by.
    Source: Shao et al., arXiv:2402.03300. Its formula does not say ddof; trl, verl and OpenRLHF use 1, rLLM 0.
    Deviation: by (group, agent) over rollouts, where others take every row; `by="group"` compares whatever the agent,
    as published.
    """
    check_deviation(ddof, epsilon)

    def rule(entries: Sequence[float]) -> tuple[Sequence[float], float]:
        std = standard_deviation(entries, ddof)
        return [mean(entries)] * len(entries), std + epsilon if std > 0 else 0.0

    return compare(table, value_C, rule, by=by, lone_agent=lone_agent)


def dr_mas(
    table: CallTable,
    value_C: NDArray[np.float64],
    *,
    ddof: int = 1,
    epsilon: float = 1e-6,
    lone_agent: LoneAgent = "zero",
) -> Baselined:
    """A = (value - mean_agent) / (std_agent + ε): GRPO with mean and standard deviation of each agent apart.

    One scale for all agents lets the gradient of those explode whose rewards vary less or lie elsewhere.

    Shapes, group of one, zero variance: as `grpo`.
    Source: Feng et al., "Dr. MAS", arXiv:2602.08847.
    Deviation: an entry a rollout, the mean of the agent's credits in it; published an entry a row, so that a rollout
    in which the agent speaks more often weighs more. It is `grpo` with `by="agent"`, the default here.
    """
    return grpo(table, value_C, ddof=ddof, epsilon=epsilon, by="agent", lone_agent=lone_agent)
