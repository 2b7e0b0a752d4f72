"""A call record, understood: request, response, choices, token ids, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis import APIS, WITHOUT_TRANSITION, Answer
from lightning_sdk.mdp.episode import CallOutcome, DropReason, Fidelity
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
    "min_tokens",
    "n",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "reasoning_effort",
)

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


def decode_call(record: SourcedRecord, tokens: Sequence[Tokens] = ()) -> CallView:
    """Read a call record. Bytes that cannot be read become the view's `problem`, never an error.

    Args:
        record: one whose body is a call.
        tokens: what the policy endpoint recorded under the call's ids, one for each attempt.
    """
    head, call = record.record, record.record.call
    body = _read_body(call)
    engine = _read_engine(body.answer, tokens)
    outcome: CallOutcome = OUTCOME_NAMES.get(call.outcome, "error")
    choices = tuple(_view_choices(body.answer, engine.ids))
    policy = engine.tokens.policy if engine.tokens is not None and engine.tokens.policy else None
    return CallView(
        call_id=call.call_id,
        response_id=body.answer.response_id,
        rollout_id=head.rollout_id or None,
        scope_id=head.scope_id or None,
        integration=call.integration,
        api=call.api,
        agent=call.agent or None,
        url=call.url,
        model=body.answer.model or _requested_model(body.request),
        request=body.request,
        response=body.response,
        request_bytes=call.request,
        outcome=outcome,
        error=error_text(call.error) if call.HasField("error") else None,
        attempts=call.attempts,
        status=call.status,
        streamed=call.streamed,
        prompt_token_ids=None if engine.ids is None else engine.ids.prompt,
        choices=choices,
        policy=policy,
        policy_version=engine.tokens.policy_version if engine.tokens is not None and policy else None,
        policy_version_end=engine.tokens.policy_version_end if engine.tokens is not None and policy else None,
        fidelity="text" if engine.ids is None else "engine",
        sampling=_sampling(body.request, engine.tokens),
        logprobs_mode=(engine.tokens.logprobs_mode or None) if engine.tokens is not None else None,
        usage=body.answer.usage,
        problem=_problem(call, outcome, body, choices, engine),
        producer=record.producer,
        seq=record.seq,
        order=head.order,
        start_ns=head.start_ns,
        end_ns=head.end_ns,
    )


def says_nothing(choice: ChoiceView) -> bool:
    """Whether nothing was generated: no token or, where ids are unknown, no content of any kind."""
    if choice.token_ids is not None:
        return not choice.token_ids
    return not any(value for key, value in choice.message.items() if key != "role")


def error_text(error: Error) -> str:
    """An error record as one line."""
    return f"{error.type}: {error.message}" if error.message else error.type


@dataclass(frozen=True, slots=True)
class _Body:
    """Request and response as far as they can be read. `readable` is whether both are what the API says."""

    request: Any
    response: Any
    answer: Answer
    readable: bool


@dataclass(frozen=True, slots=True)
class _Engine:
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
            decoder.check_request(request)
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
    views = []
    for choice in answer.choices:
        checked = None if ids is None else ids.choices[choice.index]
        views.append(
            ChoiceView(
                index=choice.index,
                message=choice.message,
                token_ids=None if checked is None else checked.token_ids,
                logprobs=choice.logprobs if checked is None else checked.logprobs,
                finish_reason=choice.finish_reason,
            )
        )
    return views


def _problem(
    call: Call, outcome: CallOutcome, body: _Body, choices: Sequence[ChoiceView], engine: _Engine
) -> DropReason | None:
    if call.api in WITHOUT_TRANSITION:
        return None
    if outcome == "error":
        return "error"
    whole = bool(choices) and all(choice.finish_reason is not None for choice in choices)
    # Many programs stop reading once they saw the finish reason: then nothing is missing.
    if outcome == "cancelled" or (outcome in ("closed_early", "abandoned") and not whole):
        return "cancelled"
    if not body.readable:
        return "unreadable"
    if all(says_nothing(choice) for choice in choices):
        return "empty_response"
    return engine.problem


def _requested_model(request: Any) -> str | None:
    model = request.get("model") if isinstance(request, dict) else None
    return model if isinstance(model, str) and model else None


def _sampling(request: Any, tokens: Tokens | None) -> dict[str, Any]:
    requested = parse_object(tokens.sampling_requested) if tokens is not None else None
    if requested is None and isinstance(request, dict):
        requested = {key: request[key] for key in SAMPLING_FIELDS if request.get(key) is not None}
    effective = parse_object(tokens.sampling_effective) if tokens is not None else None
    return {"requested": requested, "effective": effective}
