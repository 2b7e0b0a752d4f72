"""Chat completions: the request and response bodies of OpenAI's API, with vLLM's token ids."""

from __future__ import annotations

from typing import Any, Final

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis.answer import (
    OBSERVATION_KEYS,
    Answer,
    AnswerChoice,
    make_answer_choice,
    text_or_none,
)

_OBJECTS: Final = frozenset({dict})


def read_observation(request: Any) -> dict[str, Any]:
    """What a parsed request tells the model.

    Raises:
        WireError: it holds no messages.
    """
    messages = request.get("messages") if isinstance(request, dict) else None
    # What a parser makes of an object is a dict, never a subclass.
    if type(messages) is not list or not set(map(type, messages)) <= _OBJECTS:
        raise WireError("a chat request holds a list of messages, this one does not")
    return {key: request.get(key) for key in OBSERVATION_KEYS}


def read_answer(response: Any) -> Answer:
    """Read a parsed response body.

    Raises:
        WireError: it is not a chat completion.
    """
    pieces = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(pieces, list):
        raise WireError("a chat completion holds a list of choices, this one does not")
    choices = [_read_choice(piece, position) for position, piece in enumerate(pieces)]
    if len(choices) > 1:
        choices.sort(key=lambda choice: choice.index)
        if len({choice.index for choice in choices}) < len(choices):
            raise WireError("two choices of a chat completion have the same index")
    usage = response.get("usage")
    return Answer(
        text_or_none(response.get("id")),
        text_or_none(response.get("model")),
        usage if isinstance(usage, dict) else None,
        _prompt_token_ids(response, pieces),
        tuple(choices),
    )


def _read_choice(piece: Any, position: int) -> AnswerChoice:
    message = piece.get("message") if isinstance(piece, dict) else None
    if not isinstance(message, dict):
        raise WireError(f"choice {position} of a chat completion holds no message")
    index = piece.get("index", position)
    if type(index) is not int or not 0 <= index < 2**31:
        raise WireError(f"choice {position} of a chat completion has an index that is no small number")
    token_ids = piece.get("token_ids")
    choice: AnswerChoice = make_answer_choice(
        index,
        message,
        text_or_none(piece.get("finish_reason")),
        token_ids if isinstance(token_ids, list) else None,
        _logprobs(piece.get("logprobs")),
    )
    return choice


def _prompt_token_ids(response: dict[str, Any], pieces: list[Any]) -> list[Any] | None:
    # vLLM says them beside the choices; some versions and gateways inside the first one.
    for holder in (response, *pieces[:1]):
        token_ids = holder.get("prompt_token_ids")
        if isinstance(token_ids, list):
            return token_ids
    return None


def _logprobs(logprobs: Any) -> list[float] | None:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if content is None:
        return None
    try:
        return [float(entry["logprob"]) for entry in content]
    except (TypeError, KeyError, ValueError, OverflowError):
        raise WireError("the log probabilities of a choice are not a list of numbers") from None
