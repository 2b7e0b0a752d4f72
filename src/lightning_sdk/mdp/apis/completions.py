"""Completions without a conversation: a prompt, as text or as token ids, and the text that goes on from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis.answer import OBSERVATION_KEYS, Answer, AnswerChoice, text_or_none
from lightning_sdk.mdp.apis.merging import index_of, list_at, objects
from lightning_sdk.mdp.json_text import parse_json

# Beside each token in `logprobs`.
_LOGPROB_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def read_observation(request: Any) -> dict[str, Any]:
    """The prompt of a parsed request: a text, or a list of token ids.

    Raises:
        WireError: there is none, or several at once; or the answer repeats it.
    """
    prompt = request.get("prompt") if isinstance(request, dict) else None
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if not isinstance(prompt, str) and not _are_ids(prompt):
        raise WireError("a completion request holds one prompt, of text or of token ids; this one does not")
    if request.get("echo"):
        raise WireError("an answer that repeats its prompt cannot be told from it")
    return {**dict.fromkeys(OBSERVATION_KEYS), "prompt": prompt}


def _are_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(each) is int for each in prompt)


def read_answer(response: Any) -> Answer:
    """Read a parsed response body.

    Raises:
        WireError: it is no completion.
    """
    pieces = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(pieces, list):
        raise WireError("a completion holds a list of choices, this one does not")
    choices = sorted(
        (_read_choice(piece, position) for position, piece in enumerate(pieces)),
        key=lambda choice: choice.index,
    )
    if len({choice.index for choice in choices}) < len(choices):
        raise WireError("two choices of a completion have the same index")
    usage = response.get("usage")
    return Answer(
        response_id=text_or_none(response.get("id")),
        model=text_or_none(response.get("model")),
        usage=usage if isinstance(usage, dict) else None,
        prompt_token_ids=_prompt_token_ids(response, pieces),
        choices=tuple(choices),
    )


def _read_choice(piece: Any, position: int) -> AnswerChoice:
    text = piece.get("text") if isinstance(piece, dict) else None
    if not isinstance(text, str):
        raise WireError(f"choice {position} of a completion holds no text")
    index = piece.get("index", position)
    if type(index) is not int or not 0 <= index < 2**31:
        raise WireError(f"choice {position} of a completion has an index that is no small number")
    token_ids = piece.get("token_ids")
    return AnswerChoice(
        index=index,
        message={"role": "assistant", "content": text},
        finish_reason=text_or_none(piece.get("finish_reason")),
        token_ids=token_ids if isinstance(token_ids, list) else None,
        logprobs=_logprobs(piece.get("logprobs")),
    )


def _prompt_token_ids(response: Mapping[str, Any], pieces: Sequence[Any]) -> list[Any] | None:
    # vLLM says them in each choice, which here have one prompt.
    for holder in (response, *pieces[:1]):
        token_ids = holder.get("prompt_token_ids")
        if isinstance(token_ids, list):
            return token_ids
    return None


def _logprobs(logprobs: Any) -> list[float] | None:
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if values is None:
        return None
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        raise WireError("the log probabilities of a choice are not a list of numbers") from None


def join_events(events: Sequence[bytes]) -> dict[str, Any]:
    """Merge the data of a stream's events to the body that the API would have answered without streaming.

    Raises:
        WireError: an event that is neither a chunk nor the end mark.
    """
    body: dict[str, Any] = {"object": "text_completion"}
    choices: dict[int, dict[str, Any]] = {}
    for data in events:
        text = data.strip()
        if not text or text == b"[DONE]":
            continue
        chunk = parse_json(text)
        if not isinstance(chunk, dict):
            raise WireError("an event of a completion stream is not a JSON object")
        for key, value in chunk.items():
            if key != "choices" and (body.get(key) in (None, "") or (key == "usage" and value is not None)):
                body[key] = value
        for position, piece in enumerate(objects(chunk.get("choices"))):
            index = index_of(piece, position)
            _add(choices.setdefault(index, {"index": index, "text": [], "finish_reason": None}), piece)
    body["choices"] = [{**choice, "text": "".join(choice["text"])} for _, choice in sorted(choices.items())]
    return body


def _add(choice: dict[str, Any], piece: Mapping[str, Any]) -> None:
    for key, value in piece.items():
        if key == "text" and isinstance(value, str):
            choice["text"].append(value)
        elif key == "token_ids" and isinstance(value, list):
            list_at(choice, key).extend(value)
        elif key == "logprobs" and isinstance(value, dict):
            held = choice.get(key)
            choice[key] = held = held if isinstance(held, dict) else {}
            for name in _LOGPROB_LISTS:
                if isinstance(value.get(name), list):
                    list_at(held, name).extend(value[name])
        elif key not in ("index", "text") and (value is not None or key not in choice):
            choice[key] = value
