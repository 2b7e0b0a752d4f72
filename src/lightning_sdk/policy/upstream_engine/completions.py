"""What is asked of `/v1/completions`, and what its answers say of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lightning_sdk.policy.engine import FinishReason, SampledToken, SamplingParams
from lightning_sdk.policy.errors import ApiError
from lightning_sdk.policy.sampling import SHAPING

# How a token is named where it would be text: vLLM's `return_tokens_as_token_ids`.
_TOKEN_NAME: Final = "token_id:"  # noqa: S105 - no password


def request_body(model: str, prompt: Sequence[int], n: int, params: SamplingParams) -> dict[str, Any]:
    """The request, every value said: what is left out would come from the model's generation_config.json."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "n": n,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "logprobs": params.top_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        **{name: neutral[0] for name, neutral in SHAPING.items()},
        **params.shaping,
    }
    if params.seed is not None:
        body["seed"] = params.seed
    if params.stop:
        body["stop"] = list(params.stop)
    if params.constraint is not None:
        wanted: dict[str, Any] = {"type": params.constraint.kind}
        if params.constraint.schema is not None:
            wanted["json_schema"] = {"name": "answer", "schema": params.constraint.schema}
        body["response_format"] = wanted
    return body


def sampled_tokens(choice: Mapping[str, Any], top: int) -> tuple[SampledToken, ...]:
    """The tokens that a choice of an event, or of a whole answer, brings.

    Raises:
        ApiError: it does not say their ids and log probabilities.
    """
    ids = choice.get("token_ids")
    if not ids:
        if choice.get("text"):
            raise _silent("token ids")
        return ()
    told = choice.get("logprobs") or {}
    values, likeliest = told.get("token_logprobs"), told.get("top_logprobs")
    if not isinstance(values, list) or len(values) != len(ids):
        raise _silent("log probabilities")
    if not top:
        return tuple(map(SampledToken, ids, values))
    if not isinstance(likeliest, list) or len(likeliest) != len(ids):
        raise _silent("the likeliest tokens")
    return tuple(
        SampledToken(token, value, _likeliest(others, top))
        for token, value, others in zip(ids, values, likeliest, strict=True)
    )


def finish_reason(choice: Mapping[str, Any]) -> FinishReason | None:
    """Why a choice ended; None where it has not.

    Raises:
        ApiError: the upstream gave it up.
    """
    reason = choice.get("finish_reason")
    if reason in (None, "stop", "length"):
        return reason
    raise ApiError(
        502, f"the upstream ended an answer with {reason!r}", code="engine_error", kind="server_error"
    )


def prompt_logprobs(answer: Mapping[str, Any], token_ids: Sequence[int]) -> list[float]:
    """Log probabilities of the prompt's tokens but the first.

    Raises:
        ApiError: the upstream does not say them.
    """
    try:
        told = answer["choices"][0]["prompt_logprobs"]
        return [
            float(place[str(token)]["logprob"]) for place, token in zip(told[1:], token_ids[1:], strict=True)
        ]
    except (KeyError, IndexError, TypeError, ValueError):
        raise _silent("log probabilities of a prompt (prompt_logprobs)") from None


def _likeliest(others: Mapping[str, float], count: int) -> tuple[tuple[int, float], ...]:
    # The sampled token is among them, also where it is none of the likeliest.
    ordered = sorted(others.items(), key=lambda pair: -pair[1])[:count]
    return tuple((int(name.removeprefix(_TOKEN_NAME)), value) for name, value in ordered)


def _silent(what: str) -> ApiError:
    return ApiError(
        502,
        f"the upstream does not tell {what}: it must answer as vLLM does (0.10.2 or later)",
        code="engine_error",
        kind="server_error",
    )
