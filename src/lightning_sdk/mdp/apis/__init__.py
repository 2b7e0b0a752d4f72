"""The shapes of request and response that we can read, by the name that a call record carries.

A new shape is one module with the three functions of `ApiDecoder` and one line in `APIS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_sdk.mdp.apis import (
    chat_completions,
    chat_stream,
    completions,
    messages,
    messages_stream,
    responses,
    responses_stream,
)
from lightning_sdk.mdp.apis.answer import OBSERVATION_KEYS, Answer, AnswerChoice

__all__ = ["APIS", "OBSERVATION_KEYS", "WITHOUT_TRANSITION", "Answer", "AnswerChoice", "ApiDecoder"]


@dataclass(frozen=True, slots=True)
class ApiDecoder:
    """How one API's bytes are understood; each function raises WireError where they are something else."""

    # The parsed request body to what it tells the model: OBSERVATION_KEYS, with values as a chat request has them;
    # and only where there is such, "prompt" of what is no conversation, and ids of what the server adds to one.
    read_observation: Callable[[Any], dict[str, Any]]
    # The data of each server-sent event to the body that the API would have answered without streaming.
    join_events: Callable[[Sequence[bytes]], dict[str, Any]]
    read_answer: Callable[[Any], Answer]


APIS: Final[Mapping[str, ApiDecoder]] = {
    "chat.completions": ApiDecoder(
        read_observation=chat_completions.read_observation,
        join_events=chat_stream.join_events,
        read_answer=chat_completions.read_answer,
    ),
    "completions": ApiDecoder(
        read_observation=completions.read_observation,
        join_events=completions.join_events,
        read_answer=completions.read_answer,
    ),
    "responses": ApiDecoder(
        read_observation=responses.read_observation,
        join_events=responses_stream.join_events,
        read_answer=responses.read_answer,
    ),
    "messages": ApiDecoder(
        read_observation=messages.read_observation,
        join_events=messages_stream.join_events,
        read_answer=messages.read_answer,
    ),
}

# Calls that choose no action, by API, with the word under which an episode counts them.
WITHOUT_TRANSITION: Final[Mapping[str, str]] = {"embeddings": "embedding"}
