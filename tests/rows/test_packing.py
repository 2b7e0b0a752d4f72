"""Sequences into bins of a token budget.

1. The longest first, each into the fullest bin that it fits, and the same for the same lengths.
2. Never fewer bins than the bound, nor many more; what cannot be packed is refused.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.packing import least_bins, measure_packing, pack, plan_updates


def test_each_goes_into_the_fullest_bin_that_it_fits() -> None:
    # 7 and 6 open bins with 3 and 4 left; 3 fills the first, 3 the second up to 1; 2 opens a third.
    assert pack([3, 7, 2, 6, 3], 10) == [[1, 0], [3, 4], [2]]


def test_a_bin_that_is_full_takes_nothing_more() -> None:
    assert pack([5, 5, 5], 5) == [[0], [1], [2]]
    assert pack([], 5) == []


def test_waste_is_the_share_of_the_room_that_is_empty() -> None:
    stats = measure_packing([3, 7, 2, 6, 3], pack([3, 7, 2, 6, 3], 10), 10)
    assert (stats.tokens, stats.bins, stats.least_bins) == (21, 3, 3)
    assert stats.waste == pytest.approx(0.3)  # 9 of 30
    assert measure_packing([], [], 10).waste == 0


@pytest.mark.parametrize(
    ("lengths", "bins"),
    [
        ([], 0),
        ([1], 1),
        ([6, 6, 6], 3),  # none shares a bin: by tokens it would be 2
        ([5, 5, 5, 5], 2),
        ([7, 7, 4, 4], 3),  # 4 does not fit beside 7, and 4 and 4 do
        ([9, 9, 2], 3),  # 2 fits nowhere
    ],
)
def test_the_bound_sees_what_cannot_share_a_bin(lengths: list[int], bins: int) -> None:
    assert least_bins(lengths, 10) == bins == len(pack(lengths, 10))


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.integers(1, 10), max_size=6))
def test_the_bound_is_never_above_the_best_packing(lengths: list[int]) -> None:
    best = min(
        (max(where, default=-1) + 1 for where in assignments(len(lengths)) if fits(where, lengths, 10)),
        default=0,
    )
    assert least_bins(lengths, 10) <= best <= len(pack(lengths, 10))


def assignments(count: int) -> list[tuple[int, ...]]:
    """Every way to part so many things, by the number of the bin of each."""
    ways: list[tuple[int, ...]] = [()]
    for _ in range(count):
        ways = [(*way, bin_) for way in ways for bin_ in range(max(way, default=-1) + 2)]
    return ways


def fits(where: tuple[int, ...], lengths: list[int], budget: int) -> bool:
    return all(
        sum(length for at, length in zip(where, lengths, strict=True) if at == bin_) <= budget
        for bin_ in set(where)
    )


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 100), max_size=200))
def test_every_sequence_is_in_one_bin_and_bins_are_few(lengths: list[int]) -> None:
    bins = pack(lengths, 100)
    assert sorted(itertools.chain.from_iterable(bins)) == list(range(len(lengths)))
    assert all(sum(lengths[at] for at in members) <= 100 for members in bins)
    assert len(bins) <= least_bins(lengths, 100) * 1.5 + 1


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sequence 1 has 11 tokens.*max_tokens"):
        pack([1, 11], 10)
    with pytest.raises(ConfigError, match="sequence 0 has 0 tokens"):
        pack([0], 10)
    with pytest.raises(ConfigError, match="token budget is 0"):
        pack([], 0)
    with pytest.raises(ConfigError, match="rollouts_per_update is 0"):
        plan_updates([], token_budget=10, rollouts_per_update=0)
