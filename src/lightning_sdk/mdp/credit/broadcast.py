"""The rollout's return to every call of every agent: LightningRL."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.table import CallTable


def broadcast(table: CallTable) -> NDArray[np.float64]:
    """Value = R, the sum of the rollout's rewards, for each of its calls, whichever agent made it.

    Shapes: (C,). NaN where the rollout has no reward.
    Under a group baseline an agent that is in one rollout alone is compared with the group's other rollouts, since
    its credit is worth the same as theirs.
    Source: Luo et al., "Agent Lightning", arXiv:2508.03680 (identical credit).
    Deviation: none in the credit; the paper's baselines count calls, ours rollouts.
    """
    return table.return_E[table.episode_C]
