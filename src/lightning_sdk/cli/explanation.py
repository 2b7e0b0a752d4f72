"""An explanation as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from lightning_sdk.cli import wording
from lightning_sdk.mdp import Episode, RewardEvent
from lightning_sdk.mdp.explain import CallWorth, Comparison, Explanation, TrainedTokens

# Terms of a sum that are written out.
_MOST_TERMS: Final = 8
# Characters of what a rule saw: an error may be as long as a tool likes.
_MOST_SEEN: Final = 200

_CREDITS: Final[Mapping[str, str]] = {
    "broadcast": "every call is worth the return of its rollout",
    "broadcast_scope": "a call is worth the rewards of its scope and of those around it",
    "per_call": "a call is worth its own reward",
    "discounted": "a call is worth its own reward and all later ones",
    "gigpo": "the rollout's return against its group's, and the call's against those from the same state",
    "hgpo": "the call's return against those from the same state, after ever longer histories alike",
}
_BASELINES: Final[Mapping[str, str]] = {
    "rloo": "the mean of the other rollouts' entries",
    "mean": "the mean of all rollouts' entries",
    "dr_grpo": "the mean of all rollouts' entries",
    "grpo": "the mean of all rollouts' entries, over their standard deviation",
    "dr_mas": "the mean of all rollouts' entries, over their standard deviation",
    "max_rl": "the mean of all rollouts' entries, over that mean",
    "reinforce++": "whitened over the trained tokens of the batch: as if this group were all of it",
    "reinforce++_baseline": (
        "the mean of all rollouts' entries, then whitened over the trained tokens of the batch: as if this group "
        "were all of it"
    ),
    "none": "nothing is compared",
}
# Why a call is not trained. The transition's own drop reasons are those of docs/dataset.md.
_REASONS: Final[Mapping[str, str]] = {
    "unselected_agent": "another agent than those that are selected",
    "other_model": "another model or policy than those that are selected",
    "off_distribution": "sampled otherwise than the policy samples, see its sampling and response format",
    "no_decision": "no call of it is an answer of the trained policy that the agent is known to have gone on from",
    "no_reward": "its rollout got no reward, and none is not 0",
    "running": "its rollout has not ended",
    "masked_truncated": "its rollout was cut off, and such ones are masked",
    "over_length": "prompt and response are longer than asked for",
    "policy_too_old": "an older version sampled it, or another call of its group, than asked for",
    "lost": "a part of its rollout never arrived",
    "lone": "no other rollout that counts to compare with",
    "no_variance": "all that it is compared with is worth the same",
    "no_token_ids": "no engine told the token ids",
    "id_check_failed": "token ids, log probabilities and usage disagree",
    "superseded_retry": "the call failed or was given up, and was made again",
    "error": "the call failed",
    "cancelled": "the caller gave up before the response was whole",
    "unreadable": "request or response is not what its API says",
    "empty_response": "nothing was generated",
    "unused_choice": "nothing went on from this choice, or rewarded it",
    "ambiguous_choice": "which choice was used cannot be known",
}


def render_explanation(explanation: Explanation, calls: Sequence[CallWorth]) -> Iterator[RenderableType]:
    """The arithmetic, step by step.

    Args:
        explanation: of a rollout.
        calls: those of its calls that are asked for.
    """
    yield from _head(explanation)
    yield from _rewards(explanation)
    yield from _return(explanation)
    said = _CREDITS.get(explanation.credit, "as that function says")
    yield from _section("CREDIT", f"{explanation.credit}: {said}{_params(explanation.credit_params)}")
    yield from _baseline(explanation, calls)
    yield _title("CALLS")
    for call in calls:
        yield from _call(call)
    yield from _loss(calls)


def _head(explanation: Explanation) -> Iterator[RenderableType]:
    episode = explanation.episode
    complete = "" if episode.complete else ", incomplete"
    cut = f" ({wording.one_line(episode.truncation_reason)})" if episode.truncation_reason else ""
    yield Text(
        f"rollout {wording.one_line(episode.rollout_id or '-')}  {episode.outcome}{cut}{complete}",
        style="bold",
    )
    task = f" of task {wording.one_line(episode.task_id)}" if episode.task_id else ""
    yield Text(f"in a group of {wording.count(explanation.rollouts, 'rollout')}{task}", style="dim")


def _rewards(explanation: Explanation) -> Iterator[RenderableType]:
    episode = explanation.episode
    step_of = {each.call_id: each.step for each in episode.transitions}
    yield _title("REWARDS, as emitted")
    if not episode.rewards:
        yield _below("none")
    for reward in episode.rewards:
        yield _below(f"{reward.value:+.4g}{_named(reward)}  {_where(reward, episode, step_of)}")
    if explanation.air:
        yield _title("AIR, rewards from what was observed")
    for found in explanation.air:
        place = "to no call" if found.call_id is None else f"to #{step_of[found.call_id]}"
        seen = f": {wording.one_line(found.seen)}" if found.seen else ""
        cut = seen if len(seen) <= _MOST_SEEN else f"{seen[:_MOST_SEEN]}…"
        yield _below(f"{found.value:+.4g} ({wording.one_line(found.component)}) {place}{cut}")


def _named(reward: RewardEvent) -> str:
    parts = [
        f"{wording.one_line(name)} {wording.number(value)}"
        for name, value in reward.components.items()
        if name
    ]
    if len(parts) == len(reward.components) == 1:
        return f" ({wording.one_line(next(iter(reward.components)))})"
    return f" ({', '.join(parts)})" if parts else ""


def _where(reward: RewardEvent, episode: Episode, step_of: Mapping[str, int]) -> str:
    if reward.replaced:
        return f"replaced by a later one with the id {wording.one_line(reward.reward_id or '')}"
    place = "to no call" if reward.call_id not in step_of else f"to #{step_of[reward.call_id or '']}"
    if reward.choice is not None:
        place += f" choice {reward.choice}"
    agent = next((each.agent for each in episode.scopes if each.scope_id == reward.scope_id), None)
    scope = f" {wording.one_line(agent)}" if agent else ""
    how = {
        "call": "which was named",
        "scope": f"the last call of the scope{scope} by then",
        "context": "the last call: emitted after the rollout",
        "rollout": "the last call: emitted by rollout id",
        "none": "emitted outside any rollout",
    }[reward.bound]
    return (
        f"{place}, {how}"
        if reward.call_id in step_of
        else f"{place}: bound by {reward.bound}, and found none"
    )


def _return(explanation: Explanation) -> Iterator[RenderableType]:
    if explanation.return_ is None:
        yield from _section("RETURN", "none: no reward was emitted, which is not a reward of 0")
        return
    if explanation.is_failure_reward:
        told = wording.number(explanation.return_)
        yield from _section("RETURN", f"{told}, the failure reward: it ended so, and no reward was emitted")
        return
    terms = [each.value for each in explanation.episode.rewards if not each.replaced]
    terms += [each.value for each in explanation.air]
    yield from _section("RETURN", _sum(terms, explanation.return_))


def _sum(terms: Sequence[float], total: float) -> str:
    if len(terms) == 1:
        return wording.number(total)
    if len(terms) > _MOST_TERMS:
        return f"{wording.number(total)}, the sum of {len(terms):,} rewards"
    first, *others = terms
    rest = (f" {'-' if each < 0 else '+'} {wording.number(abs(each))}" for each in others)
    return f"{wording.number(first)}{''.join(rest)} = {wording.number(total)}"


def _baseline(explanation: Explanation, calls: Sequence[CallWorth]) -> Iterator[RenderableType]:
    name = explanation.baseline
    yield from _section(
        "BASELINE",
        f"{name}: {_BASELINES.get(name, 'as that function says')}{_params(explanation.baseline_params)}",
    )
    own = explanation.episode.rollout_id
    done: set[str | None] = set()
    ids = [rollout for call in calls if call.comparison for rollout, _ in call.comparison.entries]
    ids += [rollout for call in calls if call.whitening for rollout, _, _ in call.whitening.entries]
    digits = wording.telling_digits([each for each in ids if each])
    for call in calls:
        comparison = call.comparison
        if comparison is None:
            continue
        agent = None if comparison.agent is None and not comparison.is_lone else call.agent or "no agent"
        if agent in done:
            continue
        done.add(agent)
        title = "all agents" if agent is None else wording.one_line(agent)
        yield _below(f"{title}{', alone in this group, against all agents' if comparison.is_lone else ''}:")
        for rollout, entry in comparison.entries:
            mark = f"  this one{_own_mean(explanation, call)}" if rollout == own else ""
            yield _below(f"{wording.short_id(rollout, digits)}  {wording.number(entry)}{mark}", 4)
        yield from _mean(name, call, comparison, own)
    yield from _whitenings(calls, digits)
    for rollout, reason in explanation.left_out.items():
        which = "this one" if rollout == own else wording.short_id(rollout, digits)
        yield _below(f"left out: {which}, {_reason(reason)}")


def _whitenings(calls: Sequence[CallWorth], digits: int) -> Iterator[RenderableType]:
    done = set()
    for call in calls:
        whitening = call.whitening
        if whitening is None or call.policy in done:
            continue
        done.add(call.policy)
        yield _below(f"tokens{f' of policy {wording.one_line(call.policy)}' if call.policy else ''}:")
        for rollout, tokens, value in whitening.entries:
            worth = f"{wording.count(tokens, 'token')} of {wording.number(value)}"
            yield _below(f"{wording.short_id(rollout, digits)}  {worth}", 4)
        total = sum(tokens for _, tokens, _ in whitening.entries)
        if whitening.divisor is None:
            yield _below(_reason("no_variance"), 4)
        else:
            mean, divisor = wording.number(whitening.mean), wording.number(whitening.divisor)
            yield _below(f"mean of the {total:,} tokens = {mean}; divisor, their deviation, {divisor}", 4)


def _own_mean(explanation: Explanation, call: CallWorth) -> str:
    """What the entry of this rollout is the mean of, where that is not one number."""
    credits_ = [each for each in explanation.calls if each.comparison is not None and each.credit is not None]
    if call.comparison is not None and call.comparison.agent is not None:
        credits_ = [each for each in credits_ if each.agent == call.agent]
    if len({each.credit for each in credits_}) < 2:
        return ""
    if len(credits_) > _MOST_TERMS:
        return f", the mean of its {len(credits_):,} credits"
    return f", the mean of {', '.join(f'{wording.number(each.credit)} (#{each.step})' for each in credits_)}"


def _mean(name: str, call: CallWorth, comparison: Comparison, own: str | None) -> Iterator[RenderableType]:
    if comparison.skipped is not None:
        yield _below(_reason(comparison.skipped), 4)
        return
    if comparison.mean is None:
        return
    entries = [entry for rollout, entry in comparison.entries if name != "rloo" or rollout != own]
    whole = "others" if name == "rloo" else "all"
    terms = " + ".join(wording.number(each) if each >= 0 else f"({wording.number(each)})" for each in entries)
    if len(entries) > _MOST_TERMS:
        terms = f"sum of {len(entries):,} entries"
    divisor = f"({terms}) / {len(entries)}" if len(entries) > 1 else terms
    text = f"mean of {whole} = {divisor}"
    if len(entries) > 1:
        text += f" = {wording.number(comparison.mean)}"
    if call.whitening is None and call.scale not in (None, 1.0):
        text += f"; divisor {wording.number(call.scale)}"
    yield _below(text, 4)


def _call(call: CallWorth) -> Iterator[RenderableType]:
    choice = f" choice {call.choice}" if call.choice else ""
    yield _below(
        f"#{call.step}{choice} {wording.one_line(call.agent or 'no agent')}, {wording.one_line(call.call_id)}"
    )
    if call.advantage is not None:
        if call.terms:
            yield _below(_terms(call), 4)
        yield _below(_advantage(call), 4)
    if call.reason is not None:
        yield _below(f"not trained: {_reason(call.reason)}", 4)
    elif call.trained is not None:
        yield _below(_tokens(call.trained), 4)
        if call.trained.weight is not None and call.advantage is not None:
            yield _below(_pull(call.trained.weight, call.advantage), 4)


def _terms(call: CallWorth) -> str:
    """What the credit is made of."""
    parts: list[str] = []
    for term in call.terms:
        factor = "" if term.factor == 1 else f"{wording.number(term.factor)} x "
        value = wording.number(term.value)
        if term.value < 0 and (parts or factor):
            value = f"({value})"
        parts.append(f"{factor}{value} ({wording.one_line(term.what)})")
    return f"credit {wording.number(call.credit)} = {' + '.join(parts)}"


def _params(params: Mapping[str, float]) -> str:
    told = [
        f"{name} {str(value).lower()}" if isinstance(value, bool) else f"{name} {value:.4g}"
        for name, value in params.items()
    ]
    return f"; {', '.join(told)}" if told else ""


def _advantage(call: CallWorth) -> str:
    value = f"credit {wording.number(call.credit)} - baseline {wording.number(call.baseline)}"
    if call.scale not in (None, 1.0):
        value = f"({value}) / {wording.number(call.scale)}"
    return f"{value} = advantage {_signed(call.advantage or 0.0)}"


def _tokens(trained: TrainedTokens) -> str:
    last = trained.first + trained.tokens - 1
    places = f"token {trained.first}" if trained.tokens == 1 else f"tokens {trained.first} to {last}"
    return (
        f"trained: {wording.count(trained.tokens, 'token')}, {places} of the {trained.row_length:,} in sequence "
        f"{trained.row} of the rollout"
    )


def _pull(weight: float, advantage: float) -> str:
    pull = wording.number(weight * advantage)
    return f"each: weight {wording.number(weight)} x advantage {_signed(advantage)} = {pull}"


def _loss(calls: Sequence[CallWorth]) -> Iterator[RenderableType]:
    done = set()
    for call in calls:
        if call.trained is None or call.policy in done:
            continue
        done.add(call.policy)
        trained = call.trained
        policy = f" of policy {wording.one_line(call.policy)}" if call.policy else ""
        told = (
            f"R = {trained.rollouts} rollouts with a trained token; N = {trained.rollout_tokens:,} trained tokens of "
            "this one; weight of a token "
        )
        if trained.weight is None:
            told += f"1/R = {wording.number(1 / trained.rollouts)}, over the constant length that the trainer sets"
        elif trained.constant_length is not None:
            weight = wording.number(trained.weight)
            told += f"1/R x 1/L = 1/{trained.rollouts} x 1/{trained.constant_length} = {weight}"
        else:
            weight = wording.number(trained.weight)
            told += f"1/R x 1/N = 1/{trained.rollouts} x 1/{trained.rollout_tokens} = {weight}"
        yield from _section("LOSS", f"with this group as one update{policy}: {told}")


def _reason(reason: str) -> str:
    return f"{reason} ({_REASONS[reason]})" if reason in _REASONS else reason


def _signed(value: float) -> str:
    return f"{value:+.4g}" if value else "0"


def _title(text: str) -> RenderableType:
    return Text(f"\n{text}", style="bold")


def _section(title: str, text: str) -> Iterator[RenderableType]:
    yield _title(title)
    yield _below(text)


def _below(text: str, indent: int = 2) -> RenderableType:
    return Padding(Text(text, overflow="fold"), (0, 0, 0, indent), expand=False)
