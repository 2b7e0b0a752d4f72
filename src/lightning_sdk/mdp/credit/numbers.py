"""Numbers that a user gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError


def as_numbers(values: Any, name: str) -> NDArray[np.float64]:
    """What is given as float64, of a copy.

    Raises:
        ConfigError: they are no real numbers.
    """
    try:
        given = np.asarray(values)
        if np.iscomplexobj(given):
            raise TypeError
        return np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} are no numbers: {_short(values)}; give one number each") from None


def _short(values: Any) -> str:
    told = repr(values)
    return told if len(told) <= 80 else f"{told[:80]}…"
