"""What every API's request and response come down to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lightning_sdk.mdp.frozen import quick_maker

# What a request tells the model, as chat requests call it; an observation has them all.
OBSERVATION_KEYS: Final = ("messages", "tools", "tool_choice", "response_format", "chat_template_kwargs")


@dataclass(frozen=True, slots=True)
class AnswerChoice:
    """One of the alternatives that a model generated. `token_ids` is what the body says, not checked yet."""

    index: int
    message: Mapping[str, Any]
    finish_reason: str | None
    token_ids: Sequence[Any] | None
    logprobs: Sequence[float] | None


make_answer_choice = quick_maker(AnswerChoice)


class Answer(NamedTuple):
    """A response body, read. `prompt_token_ids` is what the body says, not checked yet."""

    response_id: str | None
    model: str | None
    usage: Mapping[str, Any] | None
    prompt_token_ids: Sequence[Any] | None
    choices: tuple[AnswerChoice, ...]


def text_or_none(value: Any) -> str | None:
    """A text that says something."""
    return value if isinstance(value, str) and value else None
