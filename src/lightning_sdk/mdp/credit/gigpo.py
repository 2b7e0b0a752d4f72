"""Group in group: the rollout against its group, and each step against others from the same state."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.baseline.cells import Cell, cells_of, check_deviation, mean, standard_deviation
from lightning_sdk.mdp.baseline.grpo import grpo
from lightning_sdk.mdp.baseline.mean import mean as mean_baseline
from lightning_sdk.mdp.credit.broadcast import broadcast
from lightning_sdk.mdp.credit.discounted import discounted
from lightning_sdk.mdp.credit.states import StateKey, state_keys
from lightning_sdk.mdp.table import CallTable


def gigpo(
    table: CallTable,
    *,
    state_key: StateKey | None = None,
    gamma: float = 0.95,
    weight: float = 1.0,
    normalise: bool = False,
    ddof: int = 1,
    epsilon: float = 1e-6,
) -> NDArray[np.float64]:
    """Value = A_E + w · A_S: an advantage.

    A_E = (R - mean) / F over the rollouts of (group, agent). A_S = (G_k - mean_S) / F_S over the rollouts that had
    the agent in the same state, whenever; G_k is `discounted`. F is 1, or with `normalise` the std + ε.

    Args:
        table: of C rows.
        state_key: names the state of a call; required.
        gamma: discount of G_k, per turn.
        weight: w.
        normalise: divide by standard deviations.
        ddof: of those.
        epsilon: added to them.

    Shapes: (C,). NaN at rows that are no decisions or whose rollout does not count.
    Group of one: A_E = 0. A state that one rollout alone was in: A_S = 0. Zero variance: 0; a (group, agent) in which
    every value is 0 is skipped.
    Source: Feng et al., arXiv:2505.10978.
    Deviation: both statistics count rollouts: in a state a rollout's entry is the mean of its G there, so that coming
    back to it does not make it weigh more (published: every visit). States are compared by agent.
    """
    episode_C, step_C = gigpo_parts(
        table, state_key=state_key, gamma=gamma, normalise=normalise, ddof=ddof, epsilon=epsilon
    )
    return episode_C + weight * step_C


def gigpo_parts(
    table: CallTable,
    *,
    state_key: StateKey | None,
    gamma: float,
    normalise: bool,
    ddof: int,
    epsilon: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A_E and A_S of `gigpo`, shapes (C,)."""
    check_deviation(ddof, epsilon)
    states = state_keys(table, state_key, "gigpo")
    step_return_C = discounted(table, gamma=gamma)
    value_C = broadcast(table)
    if normalise:
        episode_C = grpo(table, value_C, ddof=ddof, epsilon=epsilon, lone_agent="group").advantage_C
    else:
        episode_C = mean_baseline(table, value_C, lone_agent="group").advantage_C
    keys: list[Hashable] = [
        None if state is None else (group, agent, state)
        for group, agent, state in zip(table.group_C.tolist(), table.agent_C.tolist(), states, strict=True)
    ]
    step_C = np.where(np.isnan(episode_C), np.nan, 0.0)
    for cell in cells_of(table, step_return_C, keys).values():
        relative = relative_to_cell(step_return_C, cell, normalise, ddof, epsilon)
        if relative is not None:
            step_C[list(cell.rows)] = relative
    return episode_C, step_C


def relative_to_cell(
    value_C: NDArray[np.float64], cell: Cell, normalise: bool, ddof: int, epsilon: float
) -> Sequence[float] | NDArray[np.float64] | None:
    """(value - mean) / F of the rows of a cell; None where there is no other rollout, or nothing differs."""
    if len(cell.episodes) == 1 or cell.flat:
        return None
    scale = 1.0
    if normalise:
        std = standard_deviation(cell.entries, ddof)
        if std == 0:
            return None
        scale = std + epsilon
    return (value_C[list(cell.rows)] - mean(cell.entries)) / scale
