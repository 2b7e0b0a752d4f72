"""Hierarchy of groups: steps against others from the same state with the same history, ever longer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.baseline.cells import cells_of, check_deviation
from lightning_sdk.mdp.credit.discounted import discounted
from lightning_sdk.mdp.credit.gigpo import relative_to_cell
from lightning_sdk.mdp.credit.states import StateKey, state_keys
from lightning_sdk.mdp.table import CallTable


def hgpo(
    table: CallTable,
    *,
    state_key: StateKey | None = None,
    history: int = 2,
    alpha: float = 1.0,
    gamma: float = 0.95,
    normalise: bool = True,
    ddof: int = 0,
    epsilon: float = 1e-6,
) -> NDArray[np.float64]:
    """Value = Σ_k w_k A_k, k = 0…K: an advantage; w_k ∝ (k + 1)^alpha, summing to 1 over levels that say something.

    A_k = (G - mean_k) / (std_k + ε) over the rollouts that had the agent in the same state after the same last k
    states of that agent; G is `discounted`. Longer histories are fairer comparisons and have fewer members.

    Args:
        table: of C rows.
        state_key: names the state of a call; required.
        history: K, the longest history in turns of the agent.
        alpha: 0 weighs all levels alike.
        gamma: discount of G, per turn.
        normalise: divide by standard deviations.
        ddof: of those.
        epsilon: added to them.

    Shapes: (C,). NaN at rows that are no decisions or whose rollout does not count.
    A level that the turn has too little past for, that one rollout alone is in, or that has no variance says nothing
    and gets no weight; where no level says anything the value is 0. A (group, agent) of zeros is skipped.
    Source: He et al., arXiv:2602.22817, eq. 3-7.
    Deviation: statistics count rollouts, as in `gigpo`. The authors' code weighs (k + 2)^alpha and also leaves out a
    level in which a step happens to have the mean return; here that is a 0 with its weight.
    """
    levels = hgpo_levels(
        table,
        state_key=state_key,
        history=history,
        alpha=alpha,
        gamma=gamma,
        normalise=normalise,
        ddof=ddof,
        epsilon=epsilon,
    )
    sums_C = np.zeros(table.calls)
    weights_C = np.zeros(table.calls)
    for weight, relative_C in levels:
        known_C = ~np.isnan(relative_C)
        sums_C[known_C] += weight * relative_C[known_C]
        weights_C[known_C] += weight
    counting_C = table.decision_C & table.in_baseline_E[table.episode_C]
    value_C = np.where(counting_C, 0.0, np.nan)
    return np.divide(sums_C, weights_C, out=value_C, where=weights_C > 0)


def hgpo_levels(
    table: CallTable,
    *,
    state_key: StateKey | None,
    history: int,
    alpha: float,
    gamma: float,
    normalise: bool,
    ddof: int,
    epsilon: float,
) -> list[tuple[float, NDArray[np.float64]]]:
    """Of `hgpo` the weight, not normed yet, and A_k of each level, shape (C,); NaN where it says nothing."""
    if history < 0:
        raise ConfigError(f"history is {history}; give 0 or more past states")
    if not math.isfinite(alpha):
        raise ConfigError(f"alpha is {alpha}; give a finite number, 0 to weigh all levels alike")
    check_deviation(ddof, epsilon)
    states = state_keys(table, state_key, "hgpo")
    return_C = discounted(table, gamma=gamma)
    pasts = _pasts(table, states)
    levels = []
    for k in range(history + 1):
        keys = [_level(past, k) for past in pasts]
        if k and not any(keys):  # no past is as long, and none longer
            break
        relative_C = np.full(table.calls, np.nan)
        for cell in cells_of(table, return_C, keys).values():
            relative = relative_to_cell(return_C, cell, normalise, ddof, epsilon)
            if relative is not None:
                relative_C[list(cell.rows)] = relative
        levels.append((float(k + 1) ** alpha, relative_C))
    return levels


def _pasts(
    table: CallTable, states: Sequence[Hashable]
) -> list[tuple[tuple[int, int], list[Hashable], int] | None]:
    """For each row (group, agent), the states that the agent was in during its rollout, and the place among them."""
    visited: dict[tuple[int, int], list[Hashable]] = defaultdict(list)
    last_step: dict[tuple[int, int], int] = {}
    pasts: list[tuple[tuple[int, int], list[Hashable], int] | None] = []
    groups = table.group_C.tolist()
    for row, (episode, agent) in enumerate(
        zip(table.episode_C.tolist(), table.agent_C.tolist(), strict=True)
    ):
        if states[row] is None:
            pasts.append(None)
            continue
        path = visited[episode, agent]
        step = table.transitions[row].step
        if last_step.get((episode, agent)) != step:  # choices of one call are made in one state
            path.append(states[row])
            last_step[episode, agent] = step
        pasts.append(((groups[row], agent), path, len(path) - 1))
    return pasts


def _level(past: tuple[tuple[int, int], list[Hashable], int] | None, k: int) -> Hashable:
    if past is None or past[2] < k:
        return None
    where, path, at = past
    return (where, tuple(path[at - k : at + 1]))
