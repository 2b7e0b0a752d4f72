"""Numbers of a round: means over tokens, calls or rollouts, gathered piece by piece."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from lightning_backends.torch_rl.samples import Sample
from lightning_sdk.mdp.advantages import Advantages
from lightning_sdk.mdp.sequences import Row


class Tally:
    """Means, extremes and counts by name. What is not known (NaN) is in no mean."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._most: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def mean(self, name: str, values: ArrayLike) -> None:
        """Take values into a mean."""
        known = _known(values)
        if known.size:
            self._sums[name] += float(known.sum())  # type: ignore[assignment]
            self._counts[name] += known.size

    def most(self, name: str, values: ArrayLike) -> None:
        """Keep the largest."""
        known = _known(values)
        if known.size:
            self._most[name] = max(self._most.get(name, -math.inf), float(known.max()))

    def add(self, name: str, value: float) -> None:
        """Add to a total."""
        self._totals[name] += value  # type: ignore[assignment]

    def last(self, name: str, value: float) -> None:
        """Keep the latest."""
        self._last[name] = value

    def total(self, name: str) -> float:
        """A total so far."""
        return float(self._totals[name])

    def merge(self, other: Tally) -> None:
        """Take in what another gathered."""
        self._sums.update(other._sums)
        self._counts.update(other._counts)
        self._totals.update(other._totals)
        for name, value in other._most.items():
            self._most[name] = max(self._most.get(name, -math.inf), value)
        self._last.update(other._last)

    def numbers(self) -> dict[str, float]:
        """All of them, sorted by name."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        found = {
            **means,
            **self._most,
            **{name: float(each) for name, each in self._totals.items()},
            **self._last,
        }
        return dict(sorted(found.items()))


def measure_advantages(advantages: Advantages, tally: Tally) -> None:
    """How many groups are learned from, and how large advantages are. Rewards are the loop's to report."""
    trained = advantages.in_loss_C
    tally.add("groups_trained", len(np.unique(advantages.table.group_C[trained])))
    tally.mean("advantage.mean_size", np.abs(advantages.advantage_C[trained]))
    tally.most("advantage.most_size", np.abs(advantages.advantage_C[trained]))


def measure_rows(rows: Sequence[Row], version: int, tally: Tally) -> None:
    """Tokens, what merging calls saved, and how old the policy was that sampled them."""
    for row in rows:
        tally.add("tokens_trained", row.trained_tokens)
        tally.add("tokens_in_rows", row.length)
        ends = [int(np.flatnonzero(row.call_T == at)[-1]) + 1 for at in range(len(row.calls))]
        tally.add("tokens_saved_by_merging", sum(ends) - row.length)
        ages = version - row.policy_versions_T[row.loss_mask_T & (row.policy_versions_T >= 0)]
        tally.mean("policy_age.mean", ages)
        tally.most("policy_age.most", ages)
    tally.add("rollouts_trained", len({row.rollout_id for row in rows}))
    tally.add("rows", len(rows))


def measure_sampling(sample: Sample, tally: Tally) -> None:
    """How far the trainer's log probabilities are from those of the sampler; after `old_K` is filled in."""
    assert sample.old_K is not None
    gap = sample.old_K - sample.behaviour_K
    tally.mean("engine_gap.mean", np.abs(gap))
    tally.most("engine_gap.most", np.abs(gap))
    tally.mean("engine_gap.kl", np.expm1(np.clip(gap, -20, 20)) - gap)
    tally.add("tokens_without_behaviour_logprob", int(np.isnan(gap).sum()))


def drop_reasons(advantages: Advantages) -> dict[str, int]:
    """Why transitions are not trained, each with how many."""
    return dict(sorted(Counter(reason for reason in advantages.reason_C if reason is not None).items()))


def _known(values: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    return array[np.isfinite(array)]
