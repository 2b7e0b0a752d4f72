"""Training rows where no engine told token ids: conversations, merged by their messages.

What a tokenizer makes of them is not what was sampled, so there is no behaviour policy and no ratio to it: such
rows are for learning from text (SFT, weighted or not), and say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_sdk.mdp.advantages import Advantages
from lightning_sdk.mdp.chains import Chain, ChainForest, build_chains
from lightning_sdk.mdp.messages import answer_of, messages_of
from lightning_sdk.mdp.sequences import refuse_fidelity


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedMessage:
    """An answer that is trained: where it is in the row's messages, of which call, and what it is worth."""

    index: int
    call_id: str
    choice: int
    advantage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """One conversation; the answers in `trained` are learned from, each in exactly one row."""

    rollout_id: str | None
    policy: str | None
    model: str | None
    messages: tuple[Mapping[str, Any], ...]
    # What else goes into the prompt: as the last call said it, which is as all of them did.
    tools: Sequence[Any] | None
    chat_template_kwargs: Mapping[str, Any] | None
    trained: tuple[TrainedMessage, ...]
    fidelity: Literal["text"] = "text"


def build_text_rows(advantages: Advantages) -> list[TextRow]:
    """The conversations of what is in the loss. Takes calls without token ids, and only those.

    Raises:
        ConfigError: something in the loss has token ids (`build_rows` takes it).
    """
    table = advantages.table
    refuse_fidelity("text", table.transitions, advantages.in_loss_C.tolist())
    rows: list[TextRow] = []
    for episode in range(len(table.episodes)):
        calls = table.calls_of(episode)
        trained = advantages.in_loss_C[calls.start : calls.stop].tolist()
        if not any(trained):
            continue
        forest = build_chains(table.transitions[calls.start : calls.stop])
        values = advantages.advantage_C[calls.start : calls.stop].tolist()
        rows.extend(_build_row(forest, chain, trained, values) for chain in forest.lay_out(trained))
    return rows


def _build_row(
    forest: ChainForest, chain: Chain, trained: Sequence[bool], values: Sequence[float]
) -> TextRow:
    leaf = forest.transitions[chain.nodes[-1]]
    messages = [*messages_of(leaf), *_given(answer_of(leaf))]
    marks = []
    for at in chain.nodes[chain.first_own :]:
        if trained[at]:
            each = forest.transitions[at]
            index = len(messages_of(each))
            # As it was given; what the client sent back of it says the same.
            messages[index : index + 1] = _given(answer_of(each))
            marks.append(
                TrainedMessage(index=index, call_id=each.call_id, choice=each.choice, advantage=values[at])
            )
    return TextRow(
        rollout_id=leaf.rollout_id,
        policy=leaf.policy,
        model=leaf.model,
        messages=tuple(messages),
        tools=leaf.observation.get("tools"),
        chat_template_kwargs=leaf.observation.get("chat_template_kwargs"),
        trained=tuple(marks),
    )


def _given(answer: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return [] if answer is None else [answer]
