"""Generalised advantages over turns, from a critic's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.credit.numbers import as_numbers
from lightning_sdk.mdp.credit.turns import Turn, turns_by_episode
from lightning_sdk.mdp.table import CallTable

# One number a call (a rollout): an array, a mapping by call id (rollout id), or a function of the table to an array.
Values = (
    Sequence[float]
    | NDArray[np.float64]
    | Mapping[str, float]
    | Callable[[CallTable], Sequence[float] | NDArray[np.float64]]
)


def turn_gae(
    table: CallTable,
    *,
    values: Values | None = None,
    final_values: Values | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> NDArray[np.float64]:
    """Value_k = A_k = δ_k + gamma lam A_{k+1}, δ_k = r_k + gamma V(s_{k+1}) - V(s_k), over the turns of the rollout.

    V(s_k) is the value at the last prompt token of turn k's call. After the last turn V is 0 where the rollout ended,
    and where it was truncated the value after the last response token. Turns are those of all agents in call order,
    as in `discounted`.

    Args:
        table: of C rows and E rollouts.
        values: V(s) of each row, by call id, or as a function. Needed at every decision of a rollout that counts.
        final_values: V after the last response token of each rollout, by rollout id, or as a function. Needed for
            truncated rollouts in the loss.
        gamma: from 0 to 1.
        lam: from 0 (one turn ahead) to 1 (the return minus V).

    Shapes: (C,). It is an advantage: no group baseline goes with it, and a group of one or without variance is
    nothing special. NaN at rows that are no decisions or whose rollout does not count.
    Source: Schulman et al., arXiv:1506.02438; over turns: VAGEN, arXiv:2510.16907 (its turn level alone).
    """
    for name, factor in (("gamma", gamma), ("lam", lam)):
        if not 0 <= factor <= 1:
            raise ConfigError(f"{name} is {factor}; give a number from 0 to 1")
    if values is None:
        raise ConfigError(
            "turn_gae needs a critic: give values=, V(s) of each call, or choose another credit"
        )
    value_of = _column(table, values, [transition.call_id for transition in table.transitions], "values")
    final_of = np.full(len(table.episodes), np.nan)
    if final_values is not None:
        ids = [episode.rollout_id or "" for episode in table.episodes]
        final_of = _column(table, final_values, ids, "final_values")
    cut = np.flatnonzero(table.truncated_E & table.in_loss_E & ~np.isfinite(final_of))
    if cut.size:
        raise ConfigError(
            f"rollout {table.episodes[int(cut[0])].rollout_id!r} was truncated, so it goes on from its last call; "
            "give final_values=, V after the last response token of each such rollout"
        )
    advantage_C = np.full(table.calls, np.nan)
    for episode, turns in enumerate(turns_by_episode(table)):
        _refuse_missing(table, turns, value_of)
        after = float(final_of[episode]) if table.truncated_E[episode] else 0.0
        _fill(advantage_C, turns, value_of, after, gamma, lam)
    return advantage_C


def _fill(
    advantage_C: NDArray[np.float64],
    turns: Sequence[Turn],
    value_C: NDArray[np.float64],
    after: float,
    gamma: float,
    lam: float,
) -> None:
    later = 0.0
    for turn in reversed(turns):
        before = float(value_C[turn.rows[0]])
        for at, row in enumerate(turn.rows):
            advantage_C[row] = turn.reward_of(at) + gamma * after - before + gamma * lam * later
        later = turn.reward + gamma * after - before + gamma * lam * later
        after = before


def _refuse_missing(table: CallTable, turns: Sequence[Turn], value_C: NDArray[np.float64]) -> None:
    missing = [turn.rows[0] for turn in turns if not np.isfinite(value_C[turn.rows[0]])]
    if missing:
        raise ConfigError(
            f"values of turn_gae has {value_C[missing[0]]} for {table.name_of(missing[0])}; "
            "give V(s) for every decision, by call id or as an array"
        )


def _column(table: CallTable, values: Any, ids: Sequence[str], name: str) -> NDArray[np.float64]:
    if callable(values):
        values = values(table)
    if isinstance(values, Mapping):
        values = [values.get(id_, np.nan) for id_ in ids]
    column = as_numbers(values, f"{name} of turn_gae")
    if column.shape != (len(ids),):
        raise ConfigError(
            f"{name} of turn_gae has shape {column.shape}; expected ({len(ids)},), one number each"
        )
    return column
