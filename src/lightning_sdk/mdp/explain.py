"""Why the calls of a rollout are worth what they are: every number on the way from rewards to the weight of a token.

Nothing is computed here that training does not compute: the numbers are those of `compute_advantages`, `build_rows`
and `weight_rows`, taken apart.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.advantages import Advantages, compute_advantages
from lightning_sdk.mdp.air import AirReward, Rule, apply_air, find_air
from lightning_sdk.mdp.baseline import Baseline, BaselineFunction, find_baseline
from lightning_sdk.mdp.baseline.cells import By, Cell, mean
from lightning_sdk.mdp.baseline.compare import LONE, NO_VARIANCE, LoneAgent, cells_compared
from lightning_sdk.mdp.credit import CREDITS, Credit, CreditFunction, find_credit
from lightning_sdk.mdp.credit.terms import CreditTerm, credit_terms
from lightning_sdk.mdp.episode import Episode, Group
from lightning_sdk.mdp.select import Selection
from lightning_sdk.mdp.sequences import Row, build_rows, weight_rows
from lightning_sdk.mdp.table import NO_DECISION

# The baselines that whiten, and of them the one that compares the rollouts of a group first.
_WHITENED: Final = "reinforce++"
_CENTRED: Final = "reinforce++_baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """With what the calls of one agent in the rollout are compared."""

    # Whose calls are compared; None: those of all agents.
    agent: str | None
    # All agents take part, since in this group no other rollout has this one.
    is_lone: bool
    # Each rollout that has a say, this one among them, and its entry: the mean of the credits that count.
    entries: tuple[tuple[str | None, float], ...]
    # What the entries make of this rollout's baseline; None where the comparison tells nothing.
    mean: float | None
    # "lone" or "no_variance" where the comparison tells nothing, so that nothing of it is trained.
    skipped: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whitening:
    """Over which tokens the calls of a policy are whitened, as if the group were the whole batch."""

    # Of each rollout how many trained tokens have which value.
    entries: tuple[tuple[str | None, int, float], ...]
    mean: float
    # None where all tokens have one value, so that nothing is trained.
    divisor: float | None


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
    # What the credit is the sum of; none where it is given as a whole.
    terms: tuple[CreditTerm, ...]
    baseline: float | None
    scale: float | None
    advantage: float | None
    comparison: Comparison | None
    whitening: Whitening | None
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
    # The return is the failure reward, since none was emitted.
    is_failure_reward: bool
    credit: str
    # Numbers that the credit takes, defaults among them; and those of the baseline.
    credit_params: Mapping[str, float]
    baseline: str
    baseline_params: Mapping[str, float]
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
    credit_params: Mapping[str, Any] | None = None,
    baseline_params: Mapping[str, Any] | None = None,
    selection: Selection | None = None,
    failure_reward: float | None = None,
    mask_truncated: bool = False,
    constant_length: int | None = None,
) -> Explanation:
    """Explain one rollout.

    Args:
        group: all rollouts that it is compared with, as they were recorded.
        rollout_id: which one.
        rules: AIR, applied to all of them.
        credit: see `compute_advantages`.
        baseline: see `compute_advantages`. One that whitens over a batch is told as if the group were the whole of
            it; in training there are more groups, and with them other numbers.
        credit_params: see `compute_advantages`, as the next ones.
        baseline_params: of the baseline.
        selection: which transitions are trained.
        failure_reward: the return of failed and truncated rollouts without one.
        mask_truncated: keep truncated ones out of the loss.
        constant_length: of the loss that `dr_grpo` asks for, see `weight_rows`.

    Raises:
        ConfigError: the group has no such rollout; and see `compute_advantages`.
    """
    found = [at for at, each in enumerate(group.episodes) if each.rollout_id == rollout_id]
    if not found:
        raise ConfigError(f"the group {group.group_id!r} has no rollout {rollout_id!r}; give one of its own")
    credited = find_credit(credit)
    based = find_baseline(credited.baseline if baseline is None else baseline)
    episodes = [apply_air(each, rules) for each in group.episodes]
    advantages = compute_advantages(
        [dataclasses.replace(group, episodes=episodes)],
        credit=credit,
        baseline=baseline,
        credit_params=credit_params,
        baseline_params=baseline_params,
        selection=selection,
        failure_reward=failure_reward,
        mask_truncated=mask_truncated,
    )
    at = found[0]
    table = advantages.table
    trained = _trained_tokens(advantages, rollout_id, constant_length)
    compared = _comparisons(advantages, credited, based, baseline_params or {})
    whitened = _whitenings(advantages, based, compared)
    credit_settings = _settings(credited.function, credit_params or {})
    own = credited is CREDITS.get(credited.name)
    terms = credit_terms(table, credited.name if own else "", credit_settings)
    return Explanation(
        episode=group.episodes[at],
        air=tuple(find_air(group.episodes[at], rules)),
        return_=_known(table.return_E[at]),
        is_failure_reward=episodes[at].return_ is None and not math.isnan(table.return_E[at]),
        credit=advantages.credit,
        credit_params=_numbers(credit_settings),
        baseline=advantages.baseline,
        baseline_params={
            name: value
            for name, value in _numbers(_settings(based.function, baseline_params or {})).items()
            if not isinstance(value, bool)
        },
        calls=tuple(
            _worth(advantages, row, compared.get(row), whitened.get(row), trained, terms[row])
            for row in table.calls_of(at)
        ),
        rollouts=len(episodes),
        left_out={
            each.rollout_id or "": NO_DECISION if without_decision else table.reason_E[number] or ""
            for number, (each, without_decision) in enumerate(
                zip(table.episodes, table.without_decision_E.tolist(), strict=True)
            )
            if without_decision or not table.in_baseline_E[number]
        },
    )


def _worth(
    advantages: Advantages,
    row: int,
    comparison: Comparison | None,
    whitening: Whitening | None,
    trained: Mapping[tuple[str, int], TrainedTokens],
    terms: tuple[CreditTerm, ...],
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
        terms=terms,
        baseline=_known(advantages.baseline_C[row]),
        scale=_known(advantages.scale_C[row]),
        advantage=_known(advantages.advantage_C[row]),
        comparison=comparison,
        whitening=whitening,
        reason=reason,
        trained=None if reason else trained.get((transition.call_id, transition.choice)),
    )


def _settings(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a function, defaults among them."""
    parameters = inspect.signature(function).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return {**defaults, **given}


def _numbers(settings: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in settings.items() if isinstance(value, int | float)}


def _known(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _comparisons(
    advantages: Advantages, credit: Credit, baseline: Baseline, params: Mapping[str, Any]
) -> dict[int, Comparison]:
    """By row of the table, for what is compared at all."""
    if not (baseline.compares or baseline.name == _CENTRED):
        return {}
    table = advantages.table
    # As `compute_advantages` has it: only what all agents share can be compared whichever agent has it.
    lone_agent: LoneAgent = "group" if credit.is_shared and baseline.compares else "zero"
    by: By = params.get("by", "agent")
    cells = cells_compared(table, advantages.credit_C, by=by, lone_agent=params.get("lone_agent", lone_agent))
    comparisons = {}
    for (_, agent), (cell, against) in cells.items():
        skipped = _skipped(against, baseline)
        entries = tuple(
            (table.episodes[episode].rollout_id, entry)
            for episode, entry in zip(against.episodes, against.entries, strict=True)
        )
        for row in cell.rows:
            # Whitening adds a mean of its own to the baseline.
            middle = mean(against.entries) if baseline.name == _CENTRED else advantages.baseline_C[row]
            comparisons[row] = Comparison(
                agent=agent if against is cell else None,
                is_lone=against is not cell,
                entries=entries,
                mean=None if skipped else float(middle),
                skipped=skipped,
            )
    return comparisons


def _whitenings(
    advantages: Advantages, baseline: Baseline, compared: Mapping[int, Comparison]
) -> dict[int, Whitening]:
    """By row of the table, for what is whitened."""
    if baseline.name not in (_WHITENED, _CENTRED):
        return {}
    table = advantages.table
    counting = table.decision_C & table.in_baseline_E[table.episode_C]
    by_policy: dict[str | None, list[int]] = defaultdict(list)
    for row in counting.nonzero()[0].tolist():
        if row not in compared or not compared[row].skipped:
            by_policy[table.transitions[row].policy].append(row)
    whitenings: dict[int, Whitening] = {}
    trained_C = table.selected_C & table.in_loss_E[table.episode_C]
    for rows in by_policy.values():
        tokens: Counter[tuple[str | None, float]] = Counter()
        for row in rows:
            if trained_C[row]:
                middle = compared[row].mean if row in compared else 0.0
                key = (
                    table.episodes[table.episode_C[row]].rollout_id,
                    advantages.credit_C[row] - (middle or 0.0),
                )
                tokens[key] += len(table.transitions[row].response_token_ids or ())
        if not tokens:
            continue
        total = sum(tokens.values())
        flat = len({value for _, value in tokens}) == 1
        whitening = Whitening(
            entries=tuple((rollout_id, times, float(value)) for (rollout_id, value), times in tokens.items()),
            mean=float(sum(times * Fraction(value) for (_, value), times in tokens.items()) / total),
            divisor=None if flat else float(advantages.scale_C[rows[0]]),
        )
        whitenings.update(dict.fromkeys(rows, whitening))
    return whitenings


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
