"""The discounted return from each call on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.credit.turns import turns_by_episode
from lightning_sdk.mdp.rewards import exact_sum
from lightning_sdk.mdp.table import CallTable


def discounted(table: CallTable, *, gamma: float = 1.0) -> NDArray[np.float64]:
    """Value_k = G_k = r_k + gamma G_{k+1}, over the turns of the rollout, all agents', in call order.

    A turn is a call that is a decision; failed calls and other models' cost no discount, and what is bound to them
    belongs to the turn before. With gamma = 1 it is the return-to-go.

    Args:
        table: of C rows.
        gamma: from 0 (as `per_call`) to 1.

    Shapes: (C,). NaN at rows that are no decisions or whose rollout does not count. A reward that found no call
    reaches none.
    Source: the return of any textbook; by turns in Kevin, arXiv:2507.11948.
    """
    if not 0 <= gamma <= 1:
        raise ConfigError(f"gamma is {gamma}; give a number from 0 to 1")
    value_C = np.full(table.calls, np.nan)
    for turns in turns_by_episode(table):
        later = 0.0
        for turn in reversed(turns):
            for at, row in enumerate(turn.rows):
                value_C[row] = exact_sum([turn.reward_of(at), gamma * later])
            later = exact_sum([turn.reward, gamma * later])
    return value_C
