"""Leave-one-out: the default."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.baseline.cells import By, means_of_others
from lightning_sdk.mdp.baseline.compare import Baselined, LoneAgent, compare
from lightning_sdk.mdp.table import CallTable


def rloo(
    table: CallTable, value_C: NDArray[np.float64], *, by: By = "agent", lone_agent: LoneAgent = "zero"
) -> Baselined:
    """A = value - mean of the entries of the *other* rollouts of the cell; x_i - Σ_{j≠i} x_j / (n - 1).

    An entry x_i is the mean of the agent's credits in rollout i, so the baseline of a rollout depends on nothing that
    happened in it: the estimate stays unbiased. Entries minus baselines sum to 0 over a cell.

    Shapes: value_C (C,), and so the results; scale 1.
    Group of one: 0, skipped. Under `broadcast` an agent that is in one rollout alone uses the group's other rollouts
    (`lone_agent="group"`, counted). Zero variance: all credits of a cell equal: 0, skipped.
    Source: Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et al., arXiv:2402.14740.
    Deviation: by (group, agent) over rollouts; published by prompt over samples, which is `by="group"` with one call
    a rollout. verl gives a group of one its raw reward.
    """
    return compare(
        table, value_C, lambda entries: (means_of_others(entries), 1.0), by=by, lone_agent=lone_agent
    )
