"""What `/v1/chat/completions` answers: OpenAI's shapes, with vLLM's token ids where they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_sdk.policy.engine import SampledToken, Tokenizer
from lightning_sdk.policy.tool_prompt import ParsedText

# JSON has no infinity; OpenAI's API says the same for what is all but impossible.
_LEAST_LOGPROB = -9999.0


@dataclass(slots=True)
class Choice:
    """One answer as it grows."""

    index: int
    tokens: list[SampledToken] = field(default_factory=list)
    text: str = ""
    # As the API says it: "stop", "length" or "tool_calls"; None until it is done.
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every body and chunk of one answer repeats."""

    id: str
    created_s: int
    model: str

    def body(self, kind: str) -> dict[str, Any]:
        """A body without choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": [],
        }


def message(parsed: ParsedText) -> dict[str, Any]:
    """The assistant's message."""
    said: dict[str, Any] = {
        "role": "assistant",
        "content": parsed.content if parsed.content or not parsed.calls else None,
        "refusal": None,
    }
    if parsed.calls:
        said["tool_calls"] = tool_calls(parsed)
    return said


def tool_calls(parsed: ParsedText) -> list[dict[str, Any]]:
    """The calls, each with a fresh id."""
    return [
        {
            "id": f"call_{os.urandom(12).hex()}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in parsed.calls
    ]


def usage(prompt_tokens: int, choices: Iterable[Choice]) -> dict[str, int]:
    """Tokens read and sampled, the end-of-turn tokens included."""
    completion_tokens = sum(len(choice.tokens) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def logprobs(tokenizer: Tokenizer, tokens: Sequence[SampledToken]) -> dict[str, Any]:
    """Log probabilities of sampled tokens, one entry a token."""
    return {
        "content": [
            {
                **_token_logprob(tokenizer, token.id, token.logprob),
                "top_logprobs": [_token_logprob(tokenizer, other, value) for other, value in token.top],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def _token_logprob(tokenizer: Tokenizer, token_id: int, value: float) -> dict[str, Any]:
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    # A token that is part of a character has no text of its own, so its bytes cannot be told from it.
    bytes_ = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": max(value, _LEAST_LOGPROB), "bytes": bytes_}


def model_card(model: str, created_s: int, context_length: int, policy_version: int) -> dict[str, Any]:
    """`GET /v1/models/{model}`."""
    return {
        "id": model,
        "object": "model",
        "created": created_s,
        "owned_by": "lightning_sdk",
        "max_model_len": context_length,
        "policy_version": policy_version,
    }
