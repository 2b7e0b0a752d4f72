"""Chains and rows of what a `Tape` says, by the names of the calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_sdk.mdp import Episode, Transition, assemble, group_episodes
from lightning_sdk.mdp.advantages import Advantages
from lightning_sdk.mdp.chains import ChainForest, build_chains
from lightning_sdk.mdp.table import build_table
from support.record_factory import Tape, chat_body, chat_request


def transitions_of(tape: Tape) -> Sequence[Transition]:
    (episode,) = assemble(tape.records)
    return episode.transitions


def talk(
    tape: Tape,
    call_id: str,
    messages: Sequence[Mapping[str, Any] | str],
    answer: str | dict[str, Any],
    prompt: Sequence[int] | None = None,
    response: Sequence[int] | None = None,
    finish_reason: str = "stop",
    **request: Any,
) -> None:
    """A call with these messages (texts alternate between user and assistant) and, if given, these ids."""
    body = chat_body(
        answer,
        id=f"re_{call_id}",
        prompt_ids=prompt,
        ids=None if response is None else [response],
        finish_reason=finish_reason,
    )
    roles = ("user", "assistant")
    said = [
        {"role": roles[at % 2], "content": message} if isinstance(message, str) else dict(message)
        for at, message in enumerate(messages)
    ]
    tape.call(call_id, body, request={**chat_request(), "messages": said, **request})


def answered(transition: Transition) -> bool:
    return transition.action is not None


def usable(transition: Transition) -> bool:
    return transition.drop_reason is None


def forest_of(tape: Tape) -> ChainForest:
    return build_chains(transitions_of(tape))


def chains_of(
    tape: Tape, trained: Callable[[Transition], bool] = usable
) -> list[tuple[list[str], list[str]]]:
    """Of each chain the calls that are context only, and the calls that are its own."""
    forest = forest_of(tape)
    chains = forest.lay_out([trained(each) for each in forest.transitions])
    return [
        (
            [name(forest.transitions[at]) for at in chain.nodes[: chain.first_own]],
            [name(forest.transitions[at]) for at in chain.nodes[chain.first_own :]],
        )
        for chain in chains
    ]


def breaks_of(tape: Tape) -> dict[str, str]:
    forest = forest_of(tape)
    return {
        each.call_id: reason
        for each, reason in zip(forest.transitions, forest.find_breaks(), strict=True)
        if reason is not None
    }


def name(transition: Transition) -> str:
    """The call id; with the choice behind it where it is not the first."""
    return transition.call_id if transition.choice == 0 else f"{transition.call_id}.{transition.choice}"


def advantages_of(
    episodes: Sequence[Episode],
    *,
    values: Mapping[str, float] | None = None,
    trained: Callable[[Transition], bool] = usable,
) -> Advantages:
    """Advantages by call id, 1 where none is given; in the loss is what `trained` says."""
    table = build_table(group_episodes(episodes), require_reward=False)
    advantage_C = np.array([(values or {}).get(each.call_id, 1.0) for each in table.transitions])
    return Advantages(
        table=table,
        credit="precomputed",
        baseline="none",
        credit_C=advantage_C,
        baseline_C=np.zeros(table.calls),
        scale_C=np.ones(table.calls),
        advantage_C=advantage_C,
        in_loss_C=np.array([trained(each) for each in table.transitions], dtype=np.bool_),
        reason_C=(None,) * table.calls,
        aggregation="rollout_mean",
        counts={},
    )
