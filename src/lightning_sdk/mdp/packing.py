"""Rows into updates, and the rows of an update into micro-batches of a token budget.

A rollout is in one update as a whole, so that its tokens are weighed against each other and its rows see the
same weights; within the update its rows may be in any micro-batch, since the weights are those of the update.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.sequences import Row, weight_rows


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One optimiser step of one policy. Axis: R rows.

    Attributes:
        token_weight_R: what each trained token of a row weighs in the loss, see `weight_rows`; over all of them it
            adds up to 1, unless the baseline asks for a constant length.
        micro_batches: indices into `rows`; each row is in one of them.
    """

    policy: str | None
    rows: tuple[Row, ...]
    token_weight_R: NDArray[np.float64]
    micro_batches: tuple[tuple[int, ...], ...]
    packing: PackingStats


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingStats:
    """How full the bins are.

    Attributes:
        tokens: in all sequences.
        bins: that they were put in.
        least_bins: that any packing needs at least.
        waste: share of the bins' room that is empty.
    """

    tokens: int
    bins: int
    least_bins: int
    waste: float


def plan_updates(
    rows: Iterable[Row],
    *,
    token_budget: int,
    rollouts_per_update: int | None = None,
    constant_length: int | None = None,
) -> list[Update]:
    """Part rows into updates of one policy each, of whole rollouts.

    Args:
        rows: in any order. Rollouts are taken in the order of their first row.
        token_budget: of a micro-batch.
        rollouts_per_update: the last update of a policy may have fewer. None: all in one.
        constant_length: see `weight_rows`.

    Raises:
        ConfigError: a row that is longer than the budget, or a number that is not positive; and see `weight_rows`.
    """
    if rollouts_per_update is not None and rollouts_per_update < 1:
        raise ConfigError(
            f"rollouts_per_update is {rollouts_per_update}; it takes at least one to learn from"
        )
    by_policy: dict[str | None, dict[str | None, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_policy[row.policy][row.rollout_id].append(row)
    updates = []
    for policy, by_rollout in by_policy.items():
        rollouts = list(by_rollout.values())
        size = rollouts_per_update or len(rollouts)
        for first in range(0, len(rollouts), size):
            members = tuple(row for rollout in rollouts[first : first + size] for row in rollout)
            lengths = [row.length for row in members]
            bins = pack(lengths, token_budget)
            updates.append(
                Update(
                    policy=policy,
                    rows=members,
                    token_weight_R=weight_rows(members, constant_length=constant_length),
                    micro_batches=tuple(tuple(indices) for indices in bins),
                    packing=measure_packing(lengths, bins, token_budget),
                )
            )
    return updates


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Put sequences into few bins of a token budget: the longest first, each into the fullest bin it fits.

    Best fit decreasing: at most 11/9 of the fewest possible bins and one (Johnson 1973), in O(n log n)
    comparisons. The same lengths give the same bins.

    Returns:
        Indices into `lengths`: bins in the order of their longest sequence, each from longest to shortest.

    Raises:
        ConfigError: a sequence that is longer than the budget, or a budget or length that is not positive.
    """
    _check(lengths, budget)
    bins: list[list[int]] = []
    # Room that is left and the bin that has it, the fullest bin first.
    open_bins: list[tuple[int, int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[index]
        place = bisect_left(open_bins, (length, -1))
        if place < len(open_bins):
            room, number = open_bins.pop(place)
        else:
            room, number = budget, len(bins)
            bins.append([])
        bins[number].append(index)
        if room > length:
            insort(open_bins, (room - length, number))
    return bins


def least_bins(lengths: Sequence[int], budget: int) -> int:
    """How many bins any packing needs at least: the bound L2 of Martello and Toth (1990).

    For each size k up to half the budget: sequences that leave less room than k are alone; those of more than
    half the budget share a bin with none of their kind; those from k to half fill the room that is left, and
    more bins.

    Raises:
        ConfigError: as `pack` does.
    """
    _check(lengths, budget)
    if not lengths:
        return 0
    sizes = np.sort(np.asarray(lengths, dtype=np.int64))
    sums = np.concatenate([[0], np.cumsum(sizes)])
    half = int(np.searchsorted(sizes, budget // 2, side="right"))
    # Below the smallest size nothing changes.
    smallest = np.unique(sizes[:half]) if half else np.array([budget // 2])
    alone = np.searchsorted(sizes, budget - smallest, side="right")
    from_smallest = np.minimum(np.searchsorted(sizes, smallest, side="left"), half)
    large = len(sizes) - half
    room = (alone - half) * budget - (sums[alone] - sums[half])
    over = np.maximum(sums[half] - sums[from_smallest] - room, 0)
    return int(np.max(large + -(-over // budget)))


def measure_packing(lengths: Sequence[int], bins: Sequence[Sequence[int]], budget: int) -> PackingStats:
    """How full the bins of a packing are.

    Raises:
        ConfigError: as `pack` does.
    """
    tokens = sum(lengths)
    return PackingStats(
        tokens=tokens,
        bins=len(bins),
        least_bins=least_bins(lengths, budget),
        waste=1 - tokens / (len(bins) * budget) if bins else 0.0,
    )


def _check(lengths: Sequence[int], budget: int) -> None:
    if budget < 1:
        raise ConfigError(f"the token budget is {budget}; give the number of tokens of a micro-batch")
    for index, length in enumerate(lengths):
        if not 0 < length <= budget:
            raise ConfigError(
                f"sequence {index} has {length} tokens, and one of 1 to {budget} fits a micro-batch; "
                "raise the token budget, or leave long calls out with max_tokens"
            )
