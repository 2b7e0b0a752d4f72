"""The shapes of request and response that we can read, by the name that a call record carries.

A new shape is one module with the three functions of `ApiDecoder` and one line in `APIS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_sdk.mdp.apis import chat_completions, chat_stream
from lightning_sdk.mdp.apis.answer import Answer, AnswerChoice

__all__ = ["APIS", "WITHOUT_TRANSITION", "Answer", "AnswerChoice", "ApiDecoder"]


@dataclass(frozen=True, slots=True)
class ApiDecoder:
    """How one API's bytes are understood; each function raises WireError where they are something else."""

    # Takes the parsed request body.
    check_request: Callable[[Any], None]
    # The data of each server-sent event to the body that the API would have answered without streaming.
    join_events: Callable[[Sequence[bytes]], dict[str, Any]]
    read_answer: Callable[[Any], Answer]


APIS: Final[Mapping[str, ApiDecoder]] = {
    "chat.completions": ApiDecoder(
        check_request=chat_completions.check_request,
        join_events=chat_stream.join_events,
        read_answer=chat_completions.read_answer,
    ),
}

# Calls that choose no action, by API, with the word under which an episode counts them.
WITHOUT_TRANSITION: Final[Mapping[str, str]] = {"embeddings": "embedding"}
