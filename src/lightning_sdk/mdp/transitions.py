"""One rollout's calls and rewards to transitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis import APIS, OBSERVATION_KEYS
from lightning_sdk.mdp.binding import BoundReward
from lightning_sdk.mdp.calls import CallView, ChoiceView, says_nothing
from lightning_sdk.mdp.choices import ChoiceAt, Use, find_parents, find_uses
from lightning_sdk.mdp.episode import TEXT_ONLY, DropReason, Episode, Transition
from lightning_sdk.mdp.frozen import quick_maker
from lightning_sdk.mdp.message_links import SaidCall, find_message_parents
from lightning_sdk.mdp.retries import find_superseded
from lightning_sdk.mdp.rewards import RewardSum, returns_to_go

_make_transition = quick_maker(Transition)


class _Place(NamedTuple):
    """A call's place in the episode, shared by the transitions of all its choices."""

    step: int
    concurrent: bool
    parent_call_id: str | None
    next_call_id: str | None
    late: bool
    superseded: bool
    terminated: bool
    truncation_reason: str | None
    return_to_go: float | None


def build_transitions(
    episode: Episode,
    calls: Sequence[CallView],
    concurrent: Sequence[bool],
    late: Sequence[bool],
    rewards: Sequence[BoundReward],
) -> list[Transition]:
    """A transition for each choice of each call; one for a call that has no choice.

    A reward that names no choice goes to the first choice that is known to be used, else to the first one.

    Args:
        episode: what they share; it has none yet.
        calls: those that can be actions, in call order.
        concurrent: for each call whether its place is known by the clock only.
        late: for each call whether it was sent after the rollout had ended.
        rewards: bound to positions in `calls`; replaced ones count nowhere.
    """
    counted = [reward for reward in rewards if not reward.event.replaced]
    parents = _find_all_parents(calls)
    superseded = find_superseded(calls, parents)
    named = {(reward.at, reward.event.choice) for reward in counted}
    uses = find_uses(
        calls, parents, {(at, choice) for at, choice in named if at is not None and choice is not None}
    )
    main = [_main_choice(at, call, uses) for at, call in enumerate(calls)]
    sums: dict[ChoiceAt, RewardSum] = defaultdict(RewardSum)
    values: list[list[float]] = [[] for _ in calls]
    for reward in counted:
        if reward.at is not None:
            index = main[reward.at] if reward.event.choice is None else reward.event.choice
            sums[reward.at, index].add(reward.event)
            values[reward.at].append(reward.event.value)
    to_go = returns_to_go(values) if counted else None

    transitions = []
    for at, call in enumerate(calls):
        parent = parents[at]
        last = at == len(calls) - 1
        reason = _truncation_reason(episode, call, main[at]) if last else None
        place = _Place(
            step=at,
            concurrent=concurrent[at],
            parent_call_id=None if parent is None else calls[parent[0]].call_id,
            next_call_id=None if last else calls[at + 1].call_id,
            late=late[at],
            superseded=at in superseded,
            terminated=last and reason is None,
            truncation_reason=reason,
            return_to_go=None if to_go is None else to_go[at],
        )
        for choice in call.choices or (None,):
            reward_sum = None
            if counted:
                reward_sum = sums.get((at, 0 if choice is None else choice.index)) or RewardSum()
            use = "used" if choice is None else uses[at, choice.index]
            transitions.append(_transition(episode, call, choice, place, use, reward_sum))
    return transitions


def _find_all_parents(calls: Sequence[CallView]) -> list[ChoiceAt | None]:
    """What each call extends: by token ids where it has them, else by messages."""
    parents = find_parents(calls)
    said = [at for at, call in enumerate(calls) if call.prompt_token_ids is None]
    if len(said) > 1:
        found = find_message_parents(_said(calls[at]) for at in said)
        for at, parent in zip(said, found, strict=True):
            if parent is not None:
                parents[at] = said[parent[0]], parent[1]
    return parents


def _said(call: CallView) -> SaidCall:
    answers = [(choice.index, choice.message) for choice in call.choices]
    return SaidCall(call.policy or call.model, _observation(call), answers)


def _transition(
    episode: Episode,
    call: CallView,
    choice: ChoiceView | None,
    place: _Place,
    use: Use,
    reward_sum: RewardSum | None,
) -> Transition:
    reward = components = scopes = None
    if reward_sum is not None:
        reward, components, scopes = reward_sum.value, reward_sum.components, reward_sum.scopes
    known = choice is not None and choice.token_ids is not None
    made: Transition = _make_transition(
        # In the order of the fields.
        episode.project,
        episode.run_id,
        episode.group_id,
        episode.rollout_id,
        episode.task_id,
        episode.attempt,
        call.agent,
        call.scope_id,
        place.step,
        call.call_id,
        0 if choice is None else choice.index,
        place.parent_call_id,
        place.next_call_id,
        "clock" if place.concurrent else "causal",
        place.late,
        call.model,
        call.policy,
        call.policy_version,
        call.policy_version_end,
        "engine" if known else "text",
        call.start_ns,
        call.end_ns,
        _observation(call),
        call.sampling,
        call.logprobs_mode,
        None if choice is None else {"message": choice.message, "finish_reason": choice.finish_reason},
        call.prompt_token_ids,
        choice.token_ids if choice is not None else None,
        choice.logprobs if choice is not None and known else None,
        reward,
        components,
        scopes,
        place.return_to_go,
        place.terminated,
        place.truncation_reason is not None,
        place.truncation_reason,
        episode.outcome,
        "superseded_retry" if place.superseded else _drop_reason(call, choice, use),
        episode.split,
        episode.metadata,
    )
    return made


def _main_choice(at: int, call: CallView, uses: Mapping[ChoiceAt, Use]) -> int:
    for choice in call.choices:
        if uses[at, choice.index] == "used":
            return choice.index
    return call.choices[0].index if call.choices else 0


def _observation(call: CallView) -> dict[str, Any]:
    """In the form of a chat request, whatever the API; as it is where that cannot be read."""
    decoder = APIS.get(call.api)
    if decoder is not None:
        try:
            return decoder.read_observation(call.request)
        except WireError:
            pass
    known = call.request if isinstance(call.request, dict) else {}
    return {key: known.get(key) for key in OBSERVATION_KEYS}


def _truncation_reason(episode: Episode, call: CallView, main: int) -> str | None:
    """Why the episode was cut short at its last call; None where it came to an end of its own."""
    if episode.outcome == "truncated":
        return episode.truncation_reason
    if episode.outcome in ("cancelled", "lost", "running"):
        return episode.outcome
    cut = any(choice.index == main and choice.finish_reason == "length" for choice in call.choices)
    return "length" if episode.outcome == "succeeded" and cut else None


def _drop_reason(call: CallView, choice: ChoiceView | None, use: Use) -> DropReason | None:
    """Why the transition cannot be learned from; what bars learning from it as text too comes first."""
    if call.problem is not None and call.problem not in TEXT_ONLY:
        return call.problem
    if choice is None or says_nothing(choice):
        return "empty_response"
    if use == "unused":
        return "unused_choice"
    if use == "unknown":
        return "ambiguous_choice"
    return call.problem
