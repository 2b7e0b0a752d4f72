"""The frame that the group baselines share: what each one adds is a rule over the entries of a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.baseline.cells import By, Cell, cells_of, keys_by
from lightning_sdk.mdp.table import CallTable

# Entries of at least two rollouts that are not all equal -> the baseline of each entry, and the divisor of all.
Rule = Callable[[Sequence[float]], tuple[Sequence[float], float]]
# With what an agent is compared that is in one rollout of its group alone: with nothing (advantage 0), or with the
# group's other rollouts. The latter needs credits that are worth the same whichever agent has them (`broadcast`).
LoneAgent = Literal["zero", "group"]

# Why a decision of a rollout that counts is not trained.
LONE: Final = "lone"  # there is no other rollout to compare with
NO_VARIANCE: Final = "no_variance"  # all that it is compared with is worth the same


@dataclass(frozen=True, slots=True)
class Baselined:
    """Advantages of the decisions of rollouts that count; NaN elsewhere. All arrays have shape (C,)."""

    # (value_C - baseline_C) / scale_C, and 0 where skipped.
    advantage_C: NDArray[np.float64]
    baseline_C: NDArray[np.float64]
    scale_C: NDArray[np.float64]
    # Why a row is skipped: its advantage is 0 and teaches nothing. None where it is not.
    reason_C: tuple[str | None, ...]
    # What was skipped: (group_id, agent or None for all of them, reason).
    skipped: tuple[tuple[str, str | None, str], ...]
    # "groups_lone", "groups_no_variance", "lone_agents_by_group".
    counts: Mapping[str, int]


def compare(
    table: CallTable, value_C: NDArray[np.float64], rule: Rule, *, by: By, lone_agent: LoneAgent
) -> Baselined:
    """Compare the rollouts of each cell by a rule.

    A lone rollout gets 0 and is skipped ("lone"). A cell in which all credits are equal is skipped, and so is one to
    which the rule gives the scale 0 ("no_variance").
    """
    sheet = Sheet(table, value_C)
    for (group, agent), (cell, against) in cells_compared(
        table, value_C, by=by, lone_agent=lone_agent
    ).items():
        sheet.counts["lone_agents_by_group"] += against is not cell
        _compare_cell(sheet, (table.groups[group].group_id, agent), cell, against, rule)
    return sheet.finish()


def cells_compared(
    table: CallTable, value_C: NDArray[np.float64], *, by: By, lone_agent: LoneAgent
) -> dict[tuple[int, str | None], tuple[Cell, Cell]]:
    """Each cell, and the one with whose entries it is compared: itself, or for a lone agent the whole group.

    Returns:
        By (index of the group, agent or None), in the order of the table.
    """
    if lone_agent not in get_args(LoneAgent):
        raise ConfigError(f"lone_agent is {lone_agent!r}; give 'zero' or 'group'")
    keys = keys_by(table, by)
    cells = cells_of(table, value_C, keys)
    whole = _whole_groups(table, value_C, cells) if lone_agent == "group" and by == "agent" else {}
    compared = {}
    for key in dict.fromkeys(keys):
        if key in cells:
            against = cells[key]
            if len(against.episodes) == 1 and len(whole.get((key[0], None), against).episodes) > 1:
                against = whole[key[0], None]
            compared[key] = (cells[key], against)
    return compared


class Sheet:
    """What a baseline fills in, row by row."""

    def __init__(self, table: CallTable, value_C: NDArray[np.float64]) -> None:
        self.table = table
        self.value_C = value_C
        self.baseline_C = np.full(table.calls, np.nan)
        self.scale_C = np.full(table.calls, np.nan)
        self.reason_C: list[str | None] = [None] * table.calls
        self.skipped: list[tuple[str, str | None, str]] = []
        self.counts: Counter[str] = Counter()

    def skip(self, rows: Sequence[int], name: tuple[str, str | None], reason: str) -> None:
        """Give rows the advantage 0, and say why."""
        at = list(rows)
        self.baseline_C[at] = self.value_C[at]
        self.scale_C[at] = 1.0
        for row in at:
            self.reason_C[row] = reason
        self.skipped.append((*name, reason))
        self.counts[f"groups_{reason}"] += 1

    def finish(self) -> Baselined:
        """The advantages."""
        return Baselined(
            advantage_C=(self.value_C - self.baseline_C) / self.scale_C,
            baseline_C=self.baseline_C,
            scale_C=self.scale_C,
            reason_C=tuple(self.reason_C),
            skipped=tuple(self.skipped),
            counts=dict(+self.counts),
        )


def _whole_groups(
    table: CallTable, value_C: NDArray[np.float64], cells: Mapping[Hashable, Cell]
) -> dict[Hashable, Cell]:
    if all(len(cell.episodes) > 1 for cell in cells.values()):
        return {}
    return cells_of(table, value_C, keys_by(table, "group"))


def _compare_cell(sheet: Sheet, name: tuple[str, str | None], cell: Cell, against: Cell, rule: Rule) -> None:
    if len(against.episodes) == 1:
        sheet.skip(cell.rows, name, LONE)
        return
    if against.flat:
        sheet.skip(cell.rows, name, NO_VARIANCE)
        return
    baselines, scale = rule(against.entries)
    if scale == 0:
        sheet.skip(cell.rows, name, NO_VARIANCE)
        return
    baseline_of = dict(zip(against.episodes, baselines, strict=True))
    for row in cell.rows:
        sheet.baseline_C[row] = baseline_of[int(sheet.table.episode_C[row])]
        sheet.scale_C[row] = scale
