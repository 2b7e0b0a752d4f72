"""A call record, understood: request, response, choices, token ids, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis import APIS, WITHOUT_TRANSITION, Answer
from lightning_sdk.mdp.episode import CallOutcome, DropReason, Fidelity
from lightning_sdk.mdp.frozen import quick_maker
from lightning_sdk.mdp.json_text import parse_json, parse_object
from lightning_sdk.mdp.token_ids import CallIds, IdCheckError, choose_tokens, read_ids
from lightning_sdk.records import OUTCOME_NAMES, Call, Error, SourcedRecord, Tokens

# Fields of a request that say how to sample.
SAMPLING_FIELDS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "n",
    "seed",
    "best_of",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "reasoning_effort",
)

# Longer settings are not remembered.
_MOST_SETTINGS_BYTES: Final = 1024
_NO_ANSWER: Final = Answer(None, None, None, None, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceView:
    """One alternative that the model generated. Ids are None unless they passed the checks."""

    index: int
    message: Mapping[str, Any]
    token_ids: Sequence[int] | None
    # One a token where there are token ids; without them, as the body says.
    logprobs: Sequence[float] | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """One model call. `problem` is why nothing (or nothing by tokens) can be learned from it."""

    call_id: str
    # The id in the response body.
    response_id: str | None
    rollout_id: str | None
    scope_id: str | None
    integration: str
    api: str
    agent: str | None
    url: str
    model: str | None
    # Parsed JSON, a stream put together; None where it is missing or cannot be read.
    request: Any
    response: Any
    request_bytes: bytes
    outcome: CallOutcome
    error: str | None
    attempts: int
    status: int
    streamed: bool
    prompt_token_ids: Sequence[int] | None
    choices: tuple[ChoiceView, ...]
    policy: str | None
    policy_version: int | None
    policy_version_end: int | None
    fidelity: Fidelity
    # requested, effective: each a mapping or None
    sampling: Mapping[str, Any]
    logprobs_mode: str | None
    usage: Mapping[str, Any] | None
    problem: DropReason | None
    producer: bytes
    seq: int
    order: int
    start_ns: int
    end_ns: int


_make_call = quick_maker(CallView)
_make_choice = quick_maker(ChoiceView)


def decode_call(record: SourcedRecord, tokens: Sequence[Tokens] = ()) -> CallView:
    """Read a call record. Bytes that cannot be read become the view's `problem`, never an error.

    Args:
        record: one whose body is a call.
        tokens: what the policy endpoint recorded under the call's ids, one for each attempt.
    """
    head = record.record
    call = head.call
    body = _read_body(call)
    answer = body.answer
    told, ids, id_problem = _read_engine(answer, tokens)
    outcome: CallOutcome = OUTCOME_NAMES.get(call.outcome, "error")
    choices = tuple(_view_choices(answer, ids))
    policy = (told.policy or None) if told is not None else None
    view: CallView = _make_call(
        # In the order of the fields.
        call.call_id,
        answer.response_id,
        head.rollout_id or None,
        head.scope_id or None,
        call.integration,
        call.api,
        call.agent or None,
        call.url,
        answer.model or _requested_model(body.request),
        body.request,
        body.response,
        call.request,
        outcome,
        error_text(call.error) if call.HasField("error") else None,
        call.attempts,
        call.status,
        call.streamed,
        None if ids is None else ids.prompt,
        choices,
        policy,
        told.policy_version if told is not None and policy else None,
        told.policy_version_end if told is not None and policy else None,
        "text" if ids is None else "engine",
        _sampling(body.request, told),
        (told.logprobs_mode or None) if told is not None else None,
        answer.usage,
        _problem(call, outcome, body, choices, id_problem),
        record.producer,
        record.seq,
        head.order,
        head.start_ns,
        head.end_ns,
    )
    return view


def says_nothing(choice: ChoiceView) -> bool:
    """Whether nothing was generated: no token or, where ids are unknown, no content of any kind."""
    if choice.token_ids is not None:
        return not choice.token_ids
    return not any(value for key, value in choice.message.items() if key != "role")


def error_text(error: Error) -> str:
    """An error record as one line."""
    return f"{error.type}: {error.message}" if error.message else error.type


class _Body(NamedTuple):
    """Request and response as far as they can be read. `readable` is whether both are what the API says."""

    request: Any
    response: Any
    answer: Answer
    readable: bool


class _Engine(NamedTuple):
    """What the engine told: the endpoint's record, if it is known which, and ids that passed the checks."""

    tokens: Tokens | None
    ids: CallIds | None
    problem: DropReason | None


def _read_body(call: Call) -> _Body:
    decoder = APIS.get(call.api)
    readable = decoder is not None
    request = response = None
    answer = _NO_ANSWER
    try:
        request = parse_json(call.request)
        if decoder is not None:
            decoder.read_observation(request)
    except WireError:
        readable = False
    try:
        if not (call.streamed and call.events):
            response = parse_json(call.response)
        elif decoder is not None:
            response = decoder.join_events(call.events)
        if decoder is not None:
            answer = decoder.read_answer(response)
    except WireError:
        readable = False
    return _Body(request, response, answer, readable)


def _read_engine(answer: Answer, tokens: Sequence[Tokens]) -> _Engine:
    chosen = None
    try:
        chosen = choose_tokens(tokens, answer.response_id)
        ids = read_ids(answer, chosen) if answer.choices else None
    except IdCheckError:
        return _Engine(chosen, None, "id_check_failed")
    return _Engine(chosen, ids, "no_token_ids" if ids is None else None)


def _view_choices(answer: Answer, ids: CallIds | None) -> list[ChoiceView]:
    if ids is None:
        return [
            _make_choice(each.index, each.message, None, each.logprobs, each.finish_reason)
            for each in answer.choices
        ]
    views = []
    for choice in answer.choices:
        token_ids, logprobs = ids.choices[choice.index]
        views.append(_make_choice(choice.index, choice.message, token_ids, logprobs, choice.finish_reason))
    return views


def _problem(
    call: Call,
    outcome: CallOutcome,
    body: _Body,
    choices: Sequence[ChoiceView],
    id_problem: DropReason | None,
) -> DropReason | None:
    if call.api in WITHOUT_TRANSITION:
        return None
    if outcome != "ok":
        if outcome == "error":
            return "error"
        whole = bool(choices) and all(choice.finish_reason is not None for choice in choices)
        # Many programs stop reading once they saw the finish reason: then nothing is missing.
        if outcome == "cancelled" or not whole:
            return "cancelled"
    if not body.readable:
        return "unreadable"
    if all(says_nothing(choice) for choice in choices):
        return "empty_response"
    return id_problem


def _requested_model(request: Any) -> str | None:
    model = request.get("model") if isinstance(request, dict) else None
    return model if isinstance(model, str) and model else None


def _sampling(request: Any, tokens: Tokens | None) -> dict[str, Any]:
    requested = effective = None
    if tokens is not None:
        requested, effective = _settings(tokens.sampling_requested), _settings(tokens.sampling_effective)
    if requested is None and isinstance(request, dict):
        requested = {key: request[key] for key in SAMPLING_FIELDS if request.get(key) is not None}
    return {"requested": requested, "effective": effective}


def _settings(data: bytes) -> dict[str, Any] | None:
    known = _flat_settings(data) if len(data) <= _MOST_SETTINGS_BYTES else None
    return parse_object(data) if known is None else dict(known)


@lru_cache(maxsize=256)
def _flat_settings(data: bytes) -> Mapping[str, Any] | None:
    """The calls of a run are sampled in few ways, which are read once. None where a copy would share something."""
    told = parse_object(data)
    if told is None or any(isinstance(value, (dict, list)) for value in told.values()):
        return None
    return told
