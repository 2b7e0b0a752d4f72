"""What is compared with what: cells of rollouts, each with one entry a rollout, and exact statistics over entries.

However many calls a rollout has in a cell, it weighs one: its entry is the mean of their credits. Every statistic is
a correctly rounded sum, so it depends on no order, and the mean of equal numbers is that number.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.table import CallTable

# Rollouts of a group are compared by agent (Dr. MAS, and the default here), or whatever the agent (as published).
By = Literal["agent", "group"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Rollouts that are compared, by what they are worth here."""

    # Rows of the table, ascending.
    rows: tuple[int, ...]
    # Indices of their rollouts, ascending, and the entry of each.
    episodes: tuple[int, ...]
    entries: tuple[float, ...]
    # All credits in it are equal.
    flat: bool


def cells_of(
    table: CallTable, value_C: NDArray[np.float64], key_C: Sequence[Hashable]
) -> dict[Hashable, Cell]:
    """Group the decisions of the rollouts that are in the baseline.

    Args:
        table: whose decisions.
        value_C: their credits, shape (C,); finite at every row that takes part.
        key_C: what a row is compared under; None takes it out.
    """
    taking_part = table.decision_C & table.in_baseline_E[table.episode_C]
    members: dict[Hashable, list[int]] = defaultdict(list)
    for row in np.flatnonzero(taking_part).tolist():
        if key_C[row] is not None:
            members[key_C[row]].append(row)
    return {key: _cell(table, value_C, rows) for key, rows in members.items()}


def keys_by(table: CallTable, by: By) -> list[tuple[int, str | None]]:
    """The key of each row: (index of the group, agent), or (index of the group, None)."""
    if by not in get_args(By):
        raise ConfigError(f"by is {by!r}; give 'agent' or 'group'")
    groups = table.group_C.tolist()
    if by == "group":
        return [(group, None) for group in groups]
    return [(group, table.agents[agent]) for group, agent in zip(groups, table.agent_C.tolist(), strict=True)]


def mean(values: Sequence[float]) -> float:
    """The mean, of at least one value."""
    if min(values) == max(values):
        return values[0]
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return float(sum(map(Fraction, values), Fraction(0)) / len(values))


def means_of_others(values: Sequence[float]) -> list[float]:
    """For each value the mean of the others, of at least two values."""
    total = sum(map(Fraction, values), Fraction(0))
    return [float((total - Fraction(value)) / (len(values) - 1)) for value in values]


def standard_deviation(values: Sequence[float], ddof: int) -> float:
    """The square root of the summed squared deviations over (n - ddof); 0 where n <= ddof or all are equal."""
    if len(values) <= ddof or min(values) == max(values):
        return 0.0
    middle = mean(values)
    largest = max(abs(value - middle) for value in values)
    squares = math.fsum(((value - middle) / largest) ** 2 for value in values)
    return largest * math.sqrt(squares / (len(values) - ddof))


def check_deviation(ddof: int, epsilon: float) -> None:
    """Refuse what makes no divisor of a standard deviation: one below 0 would turn every sign."""
    if ddof not in (0, 1):
        raise ConfigError(f"ddof is {ddof!r}; give 1 (n - 1, as torch.std) or 0 (n, as numpy.std)")
    check_epsilon(epsilon)


def check_epsilon(epsilon: float) -> None:
    """Refuse what is not to be added to a divisor."""
    if not 0 <= epsilon < math.inf:
        raise ConfigError(f"epsilon is {epsilon!r}; give a finite number of at least 0, such as 1e-6")


def _cell(table: CallTable, value_C: NDArray[np.float64], rows: Sequence[int]) -> Cell:
    credits_of: dict[int, list[float]] = defaultdict(list)
    for row, episode in zip(rows, table.episode_C[rows].tolist(), strict=True):
        credits_of[episode].append(float(value_C[row]))
    credits_ = value_C[rows]
    return Cell(
        rows=tuple(rows),
        episodes=tuple(credits_of),
        entries=tuple(mean(values) for values in credits_of.values()),
        flat=bool(credits_.min() == credits_.max()),
    )
