"""Chat completions: answers whole and as chunks, with vLLM's token ids where they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_sdk.policy.answers import Answer
from lightning_sdk.policy.apis.chat_request import ChatRequest, parse_chat_request
from lightning_sdk.policy.apis.surface import Api, Body, EventWriter
from lightning_sdk.policy.apis.visible_text import VisibleText
from lightning_sdk.policy.choices import Choice
from lightning_sdk.policy.engine import Delta, SampledToken, Tokenizer
from lightning_sdk.policy.errors import openai_error
from lightning_sdk.policy.policies import Policy
from lightning_sdk.policy.sampling import SamplingRequest
from lightning_sdk.policy.tool_prompt import ParsedText

# JSON has no infinity; OpenAI's API says the same for what is all but impossible.
LEAST_LOGPROB: Final = -9999.0


@dataclass(frozen=True, slots=True)
class _Asked:
    request: ChatRequest
    tools: list[dict[str, Any]]

    @property
    def model(self) -> str:
        return self.request.model

    @property
    def is_streamed(self) -> bool:
        return self.request.is_streamed

    @property
    def uses_tools(self) -> bool:
        return bool(self.tools)

    def sampling(self) -> SamplingRequest:
        return self.request.sampling()

    def prompt(self, policy: Policy) -> str:
        messages = [message.plain() for message in self.request.messages]
        return policy.format.prompt_text(messages, self.tools)

    def whole(self, answer: Answer) -> Body:
        body = _body(answer, "chat.completion")
        body["choices"] = [self._whole_choice(answer, choice) for choice in answer.choices]
        body["usage"] = usage(len(answer.prompt), answer.choices)
        if self.request.return_token_ids:
            body["prompt_token_ids"] = answer.prompt
        return body

    def writer(self, answer: Answer) -> EventWriter:
        return _Chunks(self.request, answer)

    def _whole_choice(self, answer: Answer, choice: Choice) -> Body:
        whole: Body = {
            "index": choice.index,
            "message": _message(answer.parse(choice)),
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        if self.request.logprobs:
            whole["logprobs"] = _logprobs(answer.policy.engine.tokenizer, choice.tokens)
        if self.request.return_token_ids:
            whole["token_ids"] = [token.id for token in choice.tokens]
        return whole


def _read(body: bytes) -> _Asked:
    request = parse_chat_request(body)
    return _Asked(request, request.active_tools)


CHAT = Api(
    name="chat.completions",
    path="chat/completions",
    id_prefix="chatcmpl-",
    read=_read,
    refusal=openai_error,
    refusal_event=openai_error,
)


class _Chunks:
    """The chunks of one answer."""

    def __init__(self, request: ChatRequest, answer: Answer) -> None:
        self._request = request
        self._answer = answer
        self._texts = [VisibleText(answer.uses_tools) for _ in answer.choices]

    def begin(self) -> list[Body]:
        return [self._first(choice) for choice in self._answer.choices]

    def add(self, delta: Delta) -> list[Body]:
        request, answer = self._request, self._answer
        choice, text = answer.choices[delta.choice], self._texts[delta.choice]
        said: Body = {}
        ready = text.feed(delta.text)
        if delta.finish_reason is not None:
            parsed = answer.parse(choice)
            ready += text.rest(parsed)
            if parsed.calls:
                calls = _tool_calls(parsed)
                said["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
        if ready:
            said["content"] = ready
        if not (said or delta.finish_reason or request.return_token_ids or request.logprobs):
            return []  # nobody would miss it
        part: Body = {
            "index": choice.index,
            "delta": said,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        if request.logprobs:
            part["logprobs"] = _logprobs(answer.policy.engine.tokenizer, delta.tokens)
        if request.return_token_ids:
            part["token_ids"] = [token.id for token in delta.tokens]
        return [self._chunk([part])]

    def end(self) -> list[Body]:
        if not self._request.includes_usage:
            return []
        return [{**self._chunk([]), "usage": usage(len(self._answer.prompt), self._answer.choices)}]

    def _first(self, choice: Choice) -> Body:
        delta = {"role": "assistant", "content": ""}
        chunk = self._chunk(
            [{"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}]
        )
        if self._request.return_token_ids:
            chunk["prompt_token_ids"] = self._answer.prompt if choice.index == 0 else None
        return chunk

    def _chunk(self, choices: list[Body]) -> Body:
        chunk = {**_body(self._answer, "chat.completion.chunk"), "choices": choices}
        if self._request.includes_usage:
            chunk["usage"] = None
        return chunk


def usage(prompt_tokens: int, choices: Iterable[Choice]) -> dict[str, int]:
    """Tokens read and sampled, the end-of-turn tokens included."""
    completion_tokens = sum(len(choice.tokens) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def token_logprobs(tokenizer: Tokenizer, tokens: Sequence[SampledToken]) -> list[Body]:
    """Log probabilities of sampled tokens, one entry a token."""
    return [
        {
            **_token_logprob(tokenizer, token.id, token.logprob),
            "top_logprobs": [_token_logprob(tokenizer, other, value) for other, value in token.top],
        }
        for token in tokens
    ]


def _body(answer: Answer, kind: str) -> Body:
    head = answer.head
    return {"id": head.id, "object": kind, "created": head.created_s, "model": head.model}


def _message(parsed: ParsedText) -> Body:
    said: Body = {
        "role": "assistant",
        "content": parsed.content if parsed.content or not parsed.calls else None,
        "refusal": None,
    }
    if parsed.calls:
        said["tool_calls"] = _tool_calls(parsed)
    return said


def _tool_calls(parsed: ParsedText) -> list[Body]:
    """The calls, each with a fresh id."""
    return [
        {
            "id": f"call_{os.urandom(12).hex()}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in parsed.calls
    ]


def _logprobs(tokenizer: Tokenizer, tokens: Sequence[SampledToken]) -> dict[str, Any]:
    return {"content": token_logprobs(tokenizer, tokens), "refusal": None}


def _token_logprob(tokenizer: Tokenizer, token_id: int, value: float) -> Body:
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    # A token that is part of a character has no text of its own, so its bytes cannot be told from it.
    bytes_ = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": max(value, LEAST_LOGPROB), "bytes": bytes_}
