"""Rewards: as they were emitted, and what they add up to.

Sums are exact and rounded once, so they depend on no order, and where every reward has a call the
return-to-go of the first one is the return.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from lightning_sdk.mdp.episode import Bound, RewardEvent
from lightning_sdk.mdp.frame import is_reward
from lightning_sdk.records import Reward, SourcedRecord

_BOUND_NAMES: Final[Mapping[int, Bound]] = {
    Reward.BOUND_CALL: "call",
    Reward.BOUND_SCOPE: "scope",
    Reward.BOUND_CONTEXT: "context",
    Reward.BOUND_ROLLOUT: "rollout",
    Reward.BOUND_NONE: "none",
}


def reward_records(records: Iterable[SourcedRecord]) -> list[SourcedRecord]:
    """The records among `records` that are rewards."""
    return [item for item in records if is_reward(item.record)]


def decode_rewards(records: Iterable[SourcedRecord]) -> list[RewardEvent]:
    """Read all rewards, in the order given; records of other kinds are passed over.

    `call_id` is what the producer wrote, which `bind_rewards` resolves. Of several with one `reward_id` in
    one rollout all but the last are marked as replaced.
    """
    events: list[RewardEvent] = []
    last: dict[tuple[str, str], int] = {}
    for item in reward_records(records):
        event = _event(item)
        if event.reward_id is not None:
            key = (item.record.rollout_id, event.reward_id)
            if key in last:
                events[last[key]] = replace(events[last[key]], replaced=True)
            last[key] = len(events)
        events.append(event)
    return events


def _event(item: SourcedRecord) -> RewardEvent:
    head, reward = item.record, item.record.reward
    parts: dict[str, list[float]] = defaultdict(list)
    for component in reward.components:
        parts[component.name].append(component.value)
    return RewardEvent(
        reward_id=reward.reward_id or None,
        value=exact_sum(component.value for component in reward.components),
        components={name: exact_sum(values) for name, values in parts.items()},
        bound=_BOUND_NAMES.get(reward.bound, "none"),
        call_id=reward.call_id or None,
        choice=reward.choice if reward.HasField("choice") else None,
        scope_id=head.scope_id or None,
        order=head.order,
        time_ns=head.end_ns,
    )


@dataclass(slots=True)
class RewardSum:
    """What several rewards add up to, by component and by the scope that emitted them ("": the rollout)."""

    _values: list[float] = field(default_factory=list)
    _components: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _scopes: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, event: RewardEvent) -> None:
        """Count a reward."""
        self._values.append(event.value)
        self._scopes[event.scope_id or ""].append(event.value)
        for name, value in event.components.items():
            self._components[name].append(value)

    @property
    def value(self) -> float:
        """The sum."""
        return exact_sum(self._values)

    @property
    def components(self) -> dict[str, float]:
        """The sum of each component."""
        return {name: exact_sum(values) for name, values in self._components.items()}

    @property
    def scopes(self) -> dict[str, float]:
        """The sum from each scope."""
        return {scope: exact_sum(values) for scope, values in self._scopes.items()}


def returns_to_go(rewards_by_call: Sequence[Sequence[float]]) -> list[float]:
    """For each call the sum of the rewards of it and of all later ones.

    Args:
        rewards_by_call: the values bound to each call, in call order.
    """
    total = Fraction(0)
    rounded = 0.0
    result = [0.0] * len(rewards_by_call)
    for at in range(len(rewards_by_call) - 1, -1, -1):
        if rewards_by_call[at]:
            total += sum(map(Fraction, rewards_by_call[at]))
            rounded = _rounded(total)
        result[at] = rounded
    return result


def exact_sum(values: Iterable[float]) -> float:
    """The sum of finite numbers, rounded once; beyond a double, the largest one."""
    numbers = list(values)
    if len(numbers) == 1:
        return numbers[0]
    try:
        return math.fsum(numbers)
    except OverflowError:
        return _rounded(sum(map(Fraction, numbers), Fraction(0)))


def _rounded(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return sys.float_info.max if total > 0 else -sys.float_info.max
