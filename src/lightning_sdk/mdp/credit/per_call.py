"""Each call its own reward."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.credit.turns import turns_by_episode
from lightning_sdk.mdp.table import CallTable


def per_call(table: CallTable) -> NDArray[np.float64]:
    """Value_k = r_k: what is bound to the call, and to calls after it that are no decisions (a judge's, say).

    For contextual bandits and process rewards: nothing that comes later counts.

    Shapes: (C,). NaN at rows that are no decisions or whose rollout does not count; 0 where nothing was bound. A
    reward that found no call reaches none.
    Source: none.
    """
    value_C = np.full(table.calls, np.nan)
    for turns in turns_by_episode(table):
        for turn in turns:
            for at, row in enumerate(turn.rows):
                value_C[row] = turn.reward_of(at)
    return value_C
