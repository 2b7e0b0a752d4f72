"""What is known of the tokens of calls: counted where there are ids, else as many as the provider said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from lightning_sdk.mdp import CallView, Episode, Transition


def by_call(episode: Episode) -> Iterator[tuple[str, Sequence[Transition]]]:
    """Call ids with their choices, in call order."""
    for call_id, choices in groupby(episode.transitions, key=lambda transition: transition.call_id):
        yield call_id, list(choices)


def call_tokens(choices: Sequence[Transition], call: CallView | None) -> tuple[int | None, int | None]:
    """Prompt and response tokens (of all choices) of one call; None where it cannot be known."""
    first = choices[0]
    usage: Mapping[str, Any] = call.usage if call is not None and call.usage else {}
    prompt = len(first.prompt_token_ids) if first.prompt_token_ids is not None else None
    sampled = [len(each.response_token_ids) for each in choices if each.response_token_ids is not None]
    response = sum(sampled) if len(sampled) == len(choices) else None
    return (
        _usage(usage, "prompt_tokens", "input_tokens") if prompt is None else prompt,
        _usage(usage, "completion_tokens", "output_tokens") if response is None else response,
    )


def episode_tokens(episode: Episode, calls: Mapping[str, CallView]) -> tuple[int | None, int | None]:
    """The sums over those calls where the number is known; None where no call's is."""
    known = [call_tokens(choices, calls.get(call_id)) for call_id, choices in by_call(episode)]
    prompts = [prompt for prompt, _ in known if prompt is not None]
    responses = [response for _, response in known if response is not None]
    return (sum(prompts) if prompts else None, sum(responses) if responses else None)


def _usage(usage: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
