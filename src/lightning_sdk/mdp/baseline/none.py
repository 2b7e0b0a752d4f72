"""No baseline: the credit is the advantage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.baseline.cells import keys_by
from lightning_sdk.mdp.baseline.compare import NO_VARIANCE, Baselined, Sheet
from lightning_sdk.mdp.table import CallTable


def none(table: CallTable, value_C: NDArray[np.float64], *, skip_zero: bool = False) -> Baselined:
    """A = value. Plain REINFORCE, or a credit that is an advantage already (`turn_gae`, `gigpo`, `hgpo`).

    Shapes: value_C (C,), and so the results; baseline 0, scale 1.
    Group of one: as any other. Zero variance: not looked at; `skip_zero` (which is set for credits that are
    advantages) skips a (group, agent) in which every value is 0.
    Source: Williams 1992, "Simple statistical gradient-following algorithms".
    """
    sheet = Sheet(table, value_C)
    counting = table.decision_C & table.in_baseline_E[table.episode_C]
    sheet.baseline_C[counting] = 0.0
    sheet.scale_C[counting] = 1.0
    if skip_zero:
        keys = keys_by(table, "agent")
        rows_of: dict[tuple[int, str | None], list[int]] = {}
        for row in np.flatnonzero(counting).tolist():
            rows_of.setdefault(keys[row], []).append(row)
        for (group, agent), rows in rows_of.items():
            if not value_C[rows].any():
                sheet.skip(rows, (table.groups[group].group_id, agent), NO_VARIANCE)
    return sheet.finish()
