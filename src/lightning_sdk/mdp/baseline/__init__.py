"""Baselines: credits to advantages. One file a method, registered by name; a user's function does as well.

    baseline(table, value_C, **params) -> Baselined | advantage_C

Group baselines compare the rollouts of a (group, agent) by one entry each, see `cells` and `compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.baseline.compare import LONE, NO_VARIANCE, Baselined
from lightning_sdk.mdp.baseline.grpo import dr_mas, grpo
from lightning_sdk.mdp.baseline.max_rl import max_rl
from lightning_sdk.mdp.baseline.mean import dr_grpo, mean
from lightning_sdk.mdp.baseline.none import none
from lightning_sdk.mdp.baseline.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from lightning_sdk.mdp.baseline.rloo import rloo

__all__ = [
    "BASELINES",
    "LONE",
    "NO_VARIANCE",
    "Aggregation",
    "Baseline",
    "BaselineFunction",
    "Baselined",
    "find_baseline",
]

BaselineFunction = Callable[..., "Baselined | NDArray[np.float64]"]
# How token losses add up. "rollout_mean": (1/R) Σ_i (1/N_i) Σ_t. "token_sum": (1/R) Σ_i Σ_t over a constant length.
Aggregation = Literal["rollout_mean", "token_sum"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline by its name."""

    name: str
    function: BaselineFunction
    # It compares the rollouts of a group: it takes `by` and `lone_agent`, or as `dr_mas` the latter.
    compares: bool = True
    # What its name promises of the loss.
    aggregation: Aggregation = "rollout_mean"


BASELINES: Final[Mapping[str, Baseline]] = {
    each.name: each
    for each in (
        Baseline("none", none, compares=False),
        Baseline("rloo", rloo),
        Baseline("mean", mean),
        Baseline("grpo", grpo),
        Baseline("dr_grpo", dr_grpo, aggregation="token_sum"),
        Baseline("dr_mas", dr_mas),
        Baseline("max_rl", max_rl),
        Baseline("reinforce++", reinforce_pp, compares=False),
        Baseline("reinforce++_baseline", reinforce_pp_baseline),
    )
}


def find_baseline(baseline: str | BaselineFunction) -> Baseline:
    """The baseline of a name, or a user's function as one.

    Raises:
        ConfigError: no baseline has that name; the message lists those that there are.
    """
    if isinstance(baseline, str):
        if baseline not in BASELINES:
            known = ", ".join(sorted(BASELINES))
            raise ConfigError(f"no baseline is called {baseline!r}; there are {known}, or give a function")
        return BASELINES[baseline]
    name: Any = getattr(baseline, "__name__", type(baseline).__name__)
    return Baseline(str(name), baseline, compares=False)
