"""Why the calls of a rollout are worth what they are: every number on the way from rewards to the weight of a token.

Nothing is computed here that training does not compute: the numbers are those of `compute_advantages`, `build_rows`
and `weight_rows`, taken apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.advantages import Advantages, compute_advantages
from lightning_sdk.mdp.air import AirReward, Rule, apply_air, find_air
from lightning_sdk.mdp.baseline import Baseline, BaselineFunction, find_baseline
from lightning_sdk.mdp.baseline.cells import Cell
from lightning_sdk.mdp.baseline.compare import LONE, NO_VARIANCE, LoneAgent, cells_compared
from lightning_sdk.mdp.credit import Credit, CreditFunction, find_credit
from lightning_sdk.mdp.episode import Episode, Group
from lightning_sdk.mdp.select import Selection
from lightning_sdk.mdp.sequences import Row, build_rows, weight_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """With what the calls of one agent in the rollout are compared."""

    # None: with those of all agents, since in this group no other rollout has this one.
    agent: str | None
    # Each rollout that has a say, this one among them, and its entry: the mean of the credits that count.
    entries: tuple[tuple[str | None, float], ...]
    # "lone" or "no_variance" where the comparison tells nothing, so that nothing of it is trained.
    skipped: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens:
    """Where the sampled tokens of a call are trained, and how much each weighs."""

    tokens: int
    # The training sequence, from 0, and the place of the first of them in it.
    row: int
    first: int
    row_length: int
    # If the group is one update of the policy: rollouts with a trained token, and trained tokens of this one.
    rollouts: int
    rollout_tokens: int
    # 1 / (rollouts * rollout_tokens); or 1 / (rollouts * constant_length) where the baseline asks for that, and None
    # where it is not known.
    weight: float | None
    constant_length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWorth:
    """One choice of one call. What there is not is None."""

    step: int
    call_id: str
    choice: int
    agent: str | None
    model: str | None
    policy: str | None
    reward: float | None
    credit: float | None
    baseline: float | None
    scale: float | None
    advantage: float | None
    comparison: Comparison | None
    # Why it is not trained; None where it is.
    reason: str | None
    trained: TrainedTokens | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One rollout in its group."""

    # As it was recorded.
    episode: Episode
    air: tuple[AirReward, ...]
    # With AIR; None where there is no reward.
    return_: float | None
    credit: str
    baseline: str
    calls: tuple[CallWorth, ...]
    # How many rollouts the group has, and those without a say in the baseline, by why.
    rollouts: int
    left_out: Mapping[str, str]


def explain_rollout(
    group: Group,
    rollout_id: str,
    *,
    rules: Sequence[Rule] = (),
    credit: str | CreditFunction = "broadcast",
    baseline: str | BaselineFunction | None = None,
    selection: Selection | None = None,
    constant_length: int | None = None,
) -> Explanation:
    """Explain one rollout.

    Args:
        group: all rollouts that it is compared with, as they were recorded.
        rollout_id: which one.
        rules: AIR, applied to all of them.
        credit: see `compute_advantages`.
        baseline: see `compute_advantages`. One that whitens over a batch is refused: a group is none.
        selection: which transitions are trained.
        constant_length: of the loss that `dr_grpo` asks for, see `weight_rows`.

    Raises:
        ConfigError: the group has no such rollout; and see `compute_advantages`.
    """
    found = [at for at, each in enumerate(group.episodes) if each.rollout_id == rollout_id]
    if not found:
        raise ConfigError(f"the group {group.group_id!r} has no rollout {rollout_id!r}; give one of its own")
    credited = find_credit(credit)
    based = find_baseline(credited.baseline if baseline is None else baseline)
    if based.name.startswith("reinforce++"):
        raise ConfigError(
            f"baseline {based.name!r} whitens over all tokens of a training batch, which a group is not; "
            "choose one that compares the rollouts of a group, such as 'rloo'"
        )
    episodes = [apply_air(each, rules) for each in group.episodes]
    advantages = compute_advantages(
        [dataclasses.replace(group, episodes=episodes)], credit=credit, baseline=baseline, selection=selection
    )
    at = found[0]
    table = advantages.table
    trained = _trained_tokens(advantages, rollout_id, constant_length)
    compared = _comparisons(advantages, credited, based)
    return Explanation(
        episode=group.episodes[at],
        air=tuple(find_air(group.episodes[at], rules)),
        return_=episodes[at].return_,
        credit=advantages.credit,
        baseline=advantages.baseline,
        calls=tuple(_worth(advantages, row, compared.get(row), trained) for row in table.calls_of(at)),
        rollouts=len(episodes),
        left_out={
            each.rollout_id or "": table.reason_E[number] or ""
            for number, each in enumerate(table.episodes)
            if not table.in_baseline_E[number]
        },
    )


def _worth(
    advantages: Advantages,
    row: int,
    comparison: Comparison | None,
    trained: Mapping[tuple[str, int], TrainedTokens],
) -> CallWorth:
    transition = advantages.table.transitions[row]
    reason = advantages.reason_C[row]
    return CallWorth(
        step=transition.step,
        call_id=transition.call_id,
        choice=transition.choice,
        agent=transition.agent,
        model=transition.model,
        policy=transition.policy,
        reward=_known(advantages.table.reward_C[row]),
        credit=_known(advantages.credit_C[row]),
        baseline=_known(advantages.baseline_C[row]),
        scale=_known(advantages.scale_C[row]),
        advantage=_known(advantages.advantage_C[row]),
        comparison=comparison,
        reason=reason,
        trained=None if reason else trained.get((transition.call_id, transition.choice)),
    )


def _known(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _comparisons(advantages: Advantages, credit: Credit, baseline: Baseline) -> dict[int, Comparison]:
    """By row of the table, for what is compared at all."""
    if not baseline.compares:
        return {}
    table = advantages.table
    # As `compute_advantages` has it: only what all agents share can be compared whichever agent has it.
    lone_agent: LoneAgent = "group" if credit.is_shared else "zero"
    cells = cells_compared(table, advantages.credit_C, by="agent", lone_agent=lone_agent)
    comparisons = {}
    for (_, agent), (cell, against) in cells.items():
        entries = tuple(
            (table.episodes[episode].rollout_id, entry)
            for episode, entry in zip(against.episodes, against.entries, strict=True)
        )
        made = Comparison(
            agent=agent if against is cell else None, entries=entries, skipped=_skipped(against, baseline)
        )
        comparisons.update(dict.fromkeys(cell.rows, made))
    return comparisons


def _skipped(against: Cell, baseline: Baseline) -> str | None:
    """As `compare` has it. Only those that divide by a deviation skip equal entries of unequal credits."""
    if len(against.episodes) == 1:
        return LONE
    equal = against.flat or (baseline.name in ("grpo", "dr_mas") and len(set(against.entries)) == 1)
    return NO_VARIANCE if equal else None


def _trained_tokens(
    advantages: Advantages, rollout_id: str, constant_length: int | None
) -> dict[tuple[str, int], TrainedTokens]:
    """Of one rollout, by call and choice. None where the loss has calls without token ids: those are for text."""
    if any(
        trained and each.fidelity != "engine"
        for trained, each in zip(advantages.in_loss_C.tolist(), advantages.table.transitions, strict=True)
    ):
        return {}
    updates: dict[str | None, list[Row]] = defaultdict(list)
    for row in build_rows(advantages):
        updates[row.policy].append(row)
    found = {}
    for rows in updates.values():
        tokens: dict[str | None, int] = defaultdict(int)
        for row in rows:
            tokens[row.rollout_id] += row.trained_tokens
        weights: Sequence[float | None] = [None] * len(rows)
        if advantages.aggregation == "rollout_mean" or constant_length is not None:
            weights = weight_rows(rows, constant_length=constant_length).tolist()
        own = [pair for pair in zip(rows, weights, strict=True) if pair[0].rollout_id == rollout_id]
        for number, (row, weight) in enumerate(own):
            for index, call in enumerate(row.calls):
                places = (row.call_T == index).nonzero()[0]
                found[call] = TrainedTokens(
                    tokens=len(places),
                    row=number,
                    first=int(places[0]),
                    row_length=row.length,
                    rollouts=len(tokens),
                    rollout_tokens=tokens[rollout_id],
                    weight=weight,
                    constant_length=constant_length,
                )
    return found
