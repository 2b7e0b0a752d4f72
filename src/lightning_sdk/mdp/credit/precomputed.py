"""Values that come from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.credit.numbers import as_numbers
from lightning_sdk.mdp.episode import Transition
from lightning_sdk.mdp.table import CallTable

Precomputed = (
    Mapping[str, float]
    | Mapping[tuple[str, int], float]
    | Sequence[float]
    | NDArray[np.float64]
    | Callable[[Transition], "float | None"]
)

_VALUES: Final = "values of precomputed"


def precomputed(table: CallTable, *, values: Precomputed | None = None) -> NDArray[np.float64]:
    """Value = what is given: a judge's scores, a process reward model's, advantages of one's own.

    Args:
        table: of C rows.
        values: by `(call_id, choice)` or `call_id`, an array of shape (C,), or a function of a transition. What is
            missing or None is NaN, which is an error only where a call is needed.

    Shapes: (C,). Rollouts without a reward count too. The baseline is `none` unless one is asked for.
    Source: none.
    """
    if values is None:
        raise ConfigError(
            "precomputed needs values=: by call id, as an array, or as a function of a transition"
        )
    if isinstance(values, Mapping):
        by_id: dict[object, float] = dict(values.items())
        found = [
            by_id.get((each.call_id, each.choice), by_id.get(each.call_id, np.nan))
            for each in table.transitions
        ]
        return as_numbers(found, _VALUES)
    if callable(values):
        told = [values(each) for each in table.transitions]
        return as_numbers([np.nan if value is None else value for value in told], _VALUES)
    return as_numbers(values, _VALUES)
