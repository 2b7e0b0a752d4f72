"""Token ids of a call: from the endpoint's record or else the response body, and checked."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis import Answer
from lightning_sdk.records import Tokens, pack_int32, unpack_float32, unpack_int32


class IdCheckError(Exception):
    """Ids, log probabilities and usage do not agree, or it cannot be told which ids are the call's."""


class ChoiceIds(NamedTuple):
    """What was sampled for one choice; one log probability a token, where the engine told them."""

    token_ids: array[int]
    logprobs: array[float] | None


class CallIds(NamedTuple):
    """Ids of one call: int32 token ids of the prompt, and of each choice by its index."""

    prompt: array[int]
    choices: Mapping[int, ChoiceIds]


def choose_tokens(tokens: Sequence[Tokens], response_id: str | None) -> Tokens | None:
    """The one of a call's token records that tells of the response the client got.

    A client that retried leaves one record an attempt under one call id; the id in the response body tells
    them apart.

    Returns:
        None where there is none at all.

    Raises:
        IdCheckError: there are some, and none of them, or which of them, is this response's cannot be told.
    """
    if not tokens:
        return None
    if response_id is not None:
        for candidate in tokens:
            if candidate.response_id == response_id:
                return candidate
    # A body without an id, or an endpoint that told none: fine while there is no choice to make.
    if len(tokens) == 1 and (response_id is None or not tokens[0].response_id):
        return tokens[0]
    raise IdCheckError


def read_ids(answer: Answer, tokens: Tokens | None) -> CallIds | None:
    """Token ids of every choice of an answer, checked.

    Args:
        answer: the response body.
        tokens: the endpoint's record of it, if there is one; then the ids in the body are not looked at.

    Returns:
        None where nobody told the ids of prompt and all choices.

    Raises:
        IdCheckError: they are told, and do not agree with each other or with the usage in the body.
    """
    try:
        ids = _ids_of_body(answer) if tokens is None else _ids_of_record(answer, tokens)
    except (WireError, TypeError, OverflowError):
        raise IdCheckError from None
    if ids is None:
        return None
    sampled = 0
    for choice in ids.choices.values():
        sampled += len(choice.token_ids)
        if choice.logprobs is None:
            continue
        # The sum is finite only if each of them is: float32 values cannot overflow a double.
        if len(choice.logprobs) != len(choice.token_ids) or not math.isfinite(sum(choice.logprobs)):
            raise IdCheckError
    usage = answer.usage or {}
    if _disagrees(usage.get("prompt_tokens"), len(ids.prompt)):
        raise IdCheckError
    if _disagrees(usage.get("completion_tokens"), sampled):
        raise IdCheckError
    return ids


def _ids_of_record(answer: Answer, tokens: Tokens) -> CallIds:
    told = {choice.index: choice for choice in tokens.choices}
    choices: dict[int, ChoiceIds] = {}
    for choice in answer.choices:
        packed = told.get(choice.index)
        if packed is None:
            raise IdCheckError
        logprobs = packed.logprobs
        choices[choice.index] = ChoiceIds(
            _unpack_ids(packed.token_ids), unpack_float32(logprobs) if logprobs else None
        )
    return CallIds(_unpack_ids(tokens.prompt_token_ids), choices)


def _ids_of_body(answer: Answer) -> CallIds | None:
    if answer.prompt_token_ids is None or not answer.choices:
        return None
    choices: dict[int, ChoiceIds] = {}
    for choice in answer.choices:
        if choice.token_ids is None:
            return None
        choices[choice.index] = ChoiceIds(
            token_ids=_unpack_ids(pack_int32(choice.token_ids)),
            logprobs=None if choice.logprobs is None else array("f", choice.logprobs),
        )
    return CallIds(_unpack_ids(pack_int32(answer.prompt_token_ids)), choices)


def _unpack_ids(packed: bytes) -> array[int]:
    # The highest byte of a little-endian int32 is below 128 where the number is not negative.
    if not packed[3::4].isascii():
        raise IdCheckError
    return unpack_int32(packed)


def _disagrees(reported: Any, counted: int) -> bool:
    return type(reported) is int and reported != counted
