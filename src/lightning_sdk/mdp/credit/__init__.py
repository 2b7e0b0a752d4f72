"""Credits: what each call is worth. One file a method, registered by name; a user's function does as well.

credit(table, **params) -> value_C
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.credit.broadcast import broadcast
from lightning_sdk.mdp.credit.broadcast_scope import broadcast_scope
from lightning_sdk.mdp.credit.discounted import discounted
from lightning_sdk.mdp.credit.gigpo import gigpo
from lightning_sdk.mdp.credit.hgpo import hgpo
from lightning_sdk.mdp.credit.per_call import per_call
from lightning_sdk.mdp.credit.precomputed import precomputed
from lightning_sdk.mdp.credit.turn_gae import turn_gae

__all__ = ["CREDITS", "Credit", "CreditFunction", "find_credit"]

CreditFunction = Callable[..., NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Credit:
    """A credit by its name."""

    name: str
    function: CreditFunction
    # The baseline where none is asked for.
    baseline: str = "rloo"
    # The values are advantages: no group baseline may be subtracted again.
    is_advantage: bool = False
    # All calls of a rollout have one value, so rollouts can be compared whichever agent was in them.
    is_shared: bool = False
    # Rollouts without a reward have no value.
    needs_reward: bool = True


CREDITS: Final[Mapping[str, Credit]] = {
    each.name: each
    for each in (
        Credit("broadcast", broadcast, is_shared=True),
        Credit("broadcast_scope", broadcast_scope),
        Credit("per_call", per_call),
        Credit("discounted", discounted),
        Credit("turn_gae", turn_gae, baseline="none", is_advantage=True),
        Credit("gigpo", gigpo, baseline="none", is_advantage=True),
        Credit("hgpo", hgpo, baseline="none", is_advantage=True),
        Credit("precomputed", precomputed, baseline="none", needs_reward=False),
    )
}


def find_credit(credit: str | CreditFunction) -> Credit:
    """The credit of a name, or a user's function as one.

    Raises:
        ConfigError: no credit has that name; the message lists those that there are.
    """
    if isinstance(credit, str):
        if credit not in CREDITS:
            known = ", ".join(sorted(CREDITS))
            raise ConfigError(f"no credit is called {credit!r}; there are {known}, or give a function")
        return CREDITS[credit]
    name: Any = getattr(credit, "__name__", type(credit).__name__)
    return Credit(str(name), credit)
