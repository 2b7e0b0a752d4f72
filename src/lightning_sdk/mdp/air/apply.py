"""Episodes with what the rules found counted in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.air.rules import Finding, Rule
from lightning_sdk.mdp.episode import Episode, RewardEvent, Transition
from lightning_sdk.mdp.rewards import exact_sum, returns_to_go

_EXPECTED: Final = "give Findings of call_id, choice and what was seen, in a list that may be empty"


@dataclass(frozen=True, slots=True)
class AirReward:
    """One finding of a rule, as a reward."""

    # "air.<name of the rule>"
    component: str
    value: float
    # The call that caused it; None where nobody knows which: then it counts in the return only.
    call_id: str | None
    choice: int
    seen: str


def find_air(episode: Episode, rules: Iterable[Rule]) -> list[AirReward]:
    """What the rules find in one episode, in the order of the rules.

    None in an episode without any reward: a missing reward is not a zero reward, and a rollout that was never judged
    does not become one that went well but for what the rules found.

    Raises:
        ConfigError: two rules of one name; a function that names a call or choice that the episode does not have.
    """
    rules = list(rules)
    names = [rule.name for rule in rules]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"two AIR rules are called {twice[0]!r}; give each a name of its own")
    if episode.return_ is None:
        return []
    known = {(each.call_id, each.choice) for each in episode.transitions}
    found = []
    for rule in rules:
        for finding in _findings(rule, episode):
            if finding.call_id is not None and (finding.call_id, finding.choice) not in known:
                raise ConfigError(
                    f"the AIR rule {rule.name!r} found choice {finding.choice} of call {finding.call_id!r}, which "
                    f"rollout {episode.rollout_id!r} does not have; give the call_id of a transition, or None"
                )
            found.append(
                AirReward(
                    f"air.{rule.name}", float(rule.weight), finding.call_id, finding.choice, finding.seen
                )
            )
    return found


def _findings(rule: Rule, episode: Episode) -> list[Finding]:
    found = rule.find(episode)
    if not isinstance(found, Iterable) or isinstance(found, str):
        raise ConfigError(f"the AIR rule {rule.name!r} gave {found!r}; {_EXPECTED}")
    findings = list(found)
    for each in findings:
        if not (isinstance(each, Finding) and isinstance(each.call_id, str | None)):
            raise ConfigError(f"the AIR rule {rule.name!r} gave {each!r} among what it found; {_EXPECTED}")
    return findings


def apply_air(episode: Episode, rules: Iterable[Rule]) -> Episode:
    """The episode with a reward for each finding; rewards, return and returns-to-go are summed anew.

    The reward of a finding belongs to the scope of its call, as one that is emitted with `call=`.

    Raises:
        ConfigError: see `find_air`.
    """
    found = find_air(episode, rules)
    if not found:
        return episode
    by_place = {(each.call_id, each.choice): each for each in episode.transitions}
    events = [_event(each, by_place.get((each.call_id or "", each.choice)), episode) for each in found]
    rewards = [*episode.rewards, *events]
    to_go = _returns_to_go(episode.transitions, rewards)
    at_place: dict[tuple[str | None, int | None], list[RewardEvent]] = defaultdict(list)
    for event in events:
        at_place[event.call_id, event.choice].append(event)
    return replace(
        episode,
        transitions=[
            replace(
                _with_rewards(each, at_place[each.call_id, each.choice]),
                return_to_go=to_go[each.step],
            )
            for each in episode.transitions
        ],
        rewards=rewards,
        return_=exact_sum(event.value for event in rewards if not event.replaced),
    )


def _event(found: AirReward, cause: Transition | None, episode: Episode) -> RewardEvent:
    return RewardEvent(
        reward_id=None,
        value=found.value,
        components={found.component: found.value},
        bound="none" if cause is None else "call",
        call_id=found.call_id,
        choice=None if cause is None else found.choice,
        scope_id=None if cause is None else cause.invocation_id,
        order=0,
        time_ns=episode.start_ns if cause is None else cause.end_ns,
    )


def _returns_to_go(transitions: Sequence[Transition], rewards: Iterable[RewardEvent]) -> list[float]:
    step_of = {each.call_id: each.step for each in transitions}
    values: list[list[float]] = [[] for _ in range(max((each.step for each in transitions), default=-1) + 1)]
    for event in rewards:
        if not event.replaced and event.call_id in step_of:
            values[step_of[event.call_id]].append(event.value)
    return returns_to_go(values)


def _with_rewards(transition: Transition, events: Sequence[RewardEvent]) -> Transition:
    if not events:
        return transition
    scope = transition.invocation_id or ""
    components = dict(transition.reward_components or {})
    for event in events:
        for name, value in event.components.items():
            components[name] = exact_sum([components.get(name, 0.0), value])
    added = [event.value for event in events]
    scopes = dict(transition.reward_scopes or {})
    scopes[scope] = exact_sum([scopes.get(scope, 0.0), *added])
    return replace(
        transition,
        reward=exact_sum([transition.reward or 0.0, *added]),
        reward_components=components,
        reward_scopes=scopes,
    )
