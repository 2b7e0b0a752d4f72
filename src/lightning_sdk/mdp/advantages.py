"""Episodes to advantages: the call table, a credit, a baseline, and who is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.table import CallTable

# How token losses add up. "rollout_mean": (1/R) Σ_i (1/N_i) Σ_t. "token_sum": (1/R) Σ_i Σ_t / a constant length.
Aggregation = Literal["rollout_mean", "token_sum"]


@dataclass(frozen=True, slots=True)
class Advantages:
    """What each call of some groups is worth, and how that came about.

    `advantage_C = (credit_C - baseline_C) / scale_C`. NaN where there is none: no reward, no decision.
    """

    table: CallTable
    # Names; a user's function goes by its own.
    credit: str
    baseline: str
    credit_C: NDArray[np.float64]
    baseline_C: NDArray[np.float64]
    scale_C: NDArray[np.float64]
    advantage_C: NDArray[np.float64]
    # The transition's tokens are trained; advantage_C is finite there.
    in_loss_C: NDArray[np.bool_]
    # Why they are not: of the selection, else of the rollout, else of the baseline ("no_variance", "lone").
    reason_C: tuple[str | None, ...]
    # What the baseline's name promises of the loss.
    aggregation: Aggregation
    counts: Mapping[str, int]
