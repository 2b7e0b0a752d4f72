"""What a round's episodes tell, as named numbers: pure functions.

Names have parts with slashes, the first of which says where a number comes from: `reward/`, `rollouts/`, `groups/`,
`errors/`, `policy_age/`, `calls/`, `seconds/`, `share/`, `dropped/` and `trainer/` (whatever the trainer reported).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from lightning_sdk.mdp import Episode, Group
from lightning_sdk.plugins import Report
from lightning_sdk.rollouts.plan import FinishedGroup

Metrics = dict[str, float]

# What a person should look at.
BAD_ROLLOUTS = tuple(
    f"rollouts/{name}"
    for name in ("failed", "truncated", "cancelled", "lost", "without_call", "other_model", "without_reward")
)
# Of calls that nobody answered: who would have is not known.
_NO_ANSWER = ("error", "cancelled")
# Shortest and longest rollouts that were left out are told apart by how many calls they have.
_LENGTHS = ((1, "1_call"), (3, "2_to_3_calls"), (7, "4_to_7_calls"), (math.inf, "8_or_more_calls"))


def reward_metrics(groups: Iterable[Group]) -> Metrics:
    """Means over rollouts that have a reward: of the return, of its components, and by agent.

    `reward/agent/NAME` is what was bound to calls of that agent, over the rollouts in which it made one.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    returns = [episode.return_ for episode in episodes if episode.return_ is not None]
    metrics: Metrics = {"reward/rollouts": len(returns)}
    if returns:
        metrics["reward/mean"] = fmean(returns)
        metrics["reward/std"] = pstdev(returns)
    by_component: dict[str, list[float]] = defaultdict(list)
    by_agent: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        if episode.return_ is not None:
            _add(by_component, _components(episode))
            _add(by_agent, _agents(episode))
    if set(by_component) != {"reward"}:
        metrics.update({f"reward/component/{name}": fmean(each) for name, each in by_component.items()})
    metrics.update({f"reward/agent/{name}": fmean(each) for name, each in by_agent.items()})
    return metrics


def _add(into: dict[str, list[float]], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        into[name].append(value)


def _components(episode: Episode) -> Mapping[str, float]:
    sums: Counter[str] = Counter()
    for reward in episode.rewards:
        if not reward.replaced:
            for name, value in reward.components.items():
                sums[name or "reward"] += value  # type: ignore[assignment]
    return sums


def _agents(episode: Episode) -> Mapping[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for transition in episode.transitions:
        sums[transition.agent or "unnamed"] += transition.reward or 0.0
    return sums


def group_metrics(groups: Sequence[Group]) -> Metrics:
    """How much the rollouts of one task differ: nothing is learned where they do not."""
    spreads = []
    for group in groups:
        returns = [episode.return_ for episode in group.episodes if episode.return_ is not None]
        if len(returns) > 1:
            spreads.append(pstdev(returns))
    metrics: Metrics = {"groups/groups": len(groups)}
    if spreads:
        metrics["groups/reward_std"] = fmean(spreads)
        metrics["groups/without_variance"] = sum(spread == 0 for spread in spreads) / len(spreads)
    return metrics


def rollout_metrics(groups: Iterable[Group], policies: Iterable[str]) -> Metrics:
    """How the rollouts that arrived ended, and which called no policy that is trained.

    `rollouts/without_call`: not one model call; `rollouts/other_model`: calls, but none to a policy of the run.
    """
    trained = set(policies)
    counts: Counter[str] = Counter()
    calls = tokens = 0
    for group in groups:
        for episode in group.episodes:
            counts[episode.outcome] += 1
            counts["without_reward"] += episode.return_ is None
            ours = [each for each in episode.transitions if each.policy in trained]
            if not episode.transitions:
                counts["without_call"] += 1
            elif not ours and any(each.drop_reason not in _NO_ANSWER for each in episode.transitions):
                counts["other_model"] += 1
            calls += len(ours)
            tokens += sum(len(each.response_token_ids or ()) for each in ours)
    metrics: Metrics = {f"rollouts/{name}": many for name, many in sorted(counts.items())}
    return {**metrics, "calls/calls": calls, "calls/sampled_tokens": tokens}


def error_metrics(groups: Iterable[FinishedGroup]) -> Metrics:
    """What rollouts failed with, by the class of the exception: `errors/ValueError`."""
    kinds = (
        rollout.result.error_type
        for group in groups
        for rollout in group.rollouts
        if rollout.result is not None and rollout.outcome != "succeeded"
    )
    counts = Counter(kind.rpartition(".")[2] for kind in kinds if kind)
    return {f"errors/{kind}": many for kind, many in sorted(counts.items())}


def age_metrics(groups: Iterable[Group], versions: Mapping[str, int], max_age: int) -> Metrics:
    """By how many versions the policy is ahead of what sampled each token; the first of a call stands for all.

    Groups with a call that is older than `max_age` are told by the calls of their longest rollout: the trainer
    drops them whole.
    """
    weight = total = 0
    oldest = 0
    too_old: Counter[str] = Counter()
    for group in groups:
        group_oldest = 0
        for transition in (each for episode in group.episodes for each in episode.transitions):
            if (
                transition.policy is None
                or transition.policy not in versions
                or transition.policy_version is None
            ):
                continue
            age = versions[transition.policy] - transition.policy_version
            tokens = len(transition.response_token_ids or ())
            weight, total = weight + tokens, total + age * tokens
            group_oldest = max(group_oldest, age)
        oldest = max(oldest, group_oldest)
        if group_oldest > max_age:
            longest = max(len(episode.transitions) for episode in group.episodes)
            too_old[next(name for most, name in _LENGTHS if longest <= most)] += 1
    if not weight:
        return {}
    ages: Metrics = {"policy_age/mean": total / weight, "policy_age/max": oldest}
    return {**ages, **{f"policy_age/groups_too_old/{name}": many for name, many in too_old.items()}}


def report_metrics(report: Report) -> Metrics:
    """What the trainer told."""
    metrics: Metrics = {f"trainer/{name}": float(value) for name, value in report.metrics.items()}
    metrics.update({f"dropped/{reason}": many for reason, many in report.dropped.items()})
    if report.policy_version is not None:
        metrics["trainer/policy_version"] = report.policy_version
    return metrics
