"""Completions without a conversation: text, or token ids, gone on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from lightning_sdk.policy.answers import Answer
from lightning_sdk.policy.apis.chat import LEAST_LOGPROB, usage
from lightning_sdk.policy.apis.chat_request import HARMLESS
from lightning_sdk.policy.apis.fields import MOST_TOP_LOGPROBS, CompletionFields, check_completion_fields
from lightning_sdk.policy.apis.reading import (
    Neutral,
    check_fields,
    drop_neutral,
    read_fields,
    without_harmless,
)
from lightning_sdk.policy.apis.surface import Api, Body, EventWriter
from lightning_sdk.policy.choices import Choice
from lightning_sdk.policy.engine import Delta, SampledToken, Tokenizer
from lightning_sdk.policy.errors import invalid, openai_error, unsupported
from lightning_sdk.policy.policies import Policy
from lightning_sdk.policy.sampling import SamplingRequest

_NEUTRAL: Final[Neutral] = {"best_of": (1,), "suffix": ("",)}

_TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class CompletionRequest(CompletionFields):
    """`POST /v1/completions`."""

    prompt: str | list[_TokenId] | list[str] | list[list[_TokenId]]
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    echo: bool | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    request: CompletionRequest
    text_or_ids: str | list[int]
    uses_tools: bool = False

    @property
    def model(self) -> str:
        return self.request.model

    @property
    def is_streamed(self) -> bool:
        return self.request.is_streamed

    def sampling(self) -> SamplingRequest:
        return self.request.sampled(
            {}, max_tokens=self.request.max_tokens, top_logprobs=self.request.logprobs or 0
        )

    def prompt(self, policy: Policy) -> str | Sequence[int]:
        given, known = self.text_or_ids, policy.engine.vocabulary
        if isinstance(given, list) and max(given) >= known:
            raise invalid(
                f"prompt has the token id {max(given)}: the model's are below {known}", param="prompt"
            )
        return given

    def whole(self, answer: Answer) -> Body:
        tokenizer = answer.policy.engine.tokenizer
        parts = [
            self._part(
                answer, choice, choice.text, choice.tokens, _LogprobWriter(tokenizer), tells_prompt=True
            )
            for choice in answer.choices
        ]
        return {**_body(answer), "choices": parts, "usage": usage(len(answer.prompt), answer.choices)}

    def writer(self, answer: Answer) -> EventWriter:
        return _Chunks(self, answer)

    def _part(
        self,
        answer: Answer,
        choice: Choice,
        text: str,
        tokens: Sequence[SampledToken],
        logprobs: _LogprobWriter,
        *,
        tells_prompt: bool,
    ) -> Body:
        """A choice, or what it gained."""
        part: Body = {
            "index": choice.index,
            "text": text,
            "logprobs": None if self.request.logprobs is None else logprobs.write(tokens),
            "finish_reason": choice.finish_reason,
        }
        if self.request.return_token_ids:
            part["token_ids"] = [token.id for token in tokens]
            if tells_prompt:
                part["prompt_token_ids"] = answer.prompt
        return part


class _Chunks:
    """The chunks of one answer."""

    def __init__(self, asked: _Asked, answer: Answer) -> None:
        self._asked = asked
        self._answer = answer
        tokenizer = answer.policy.engine.tokenizer
        self._logprobs = [_LogprobWriter(tokenizer) for _ in answer.choices]
        self._begun: set[int] = set()

    def begin(self) -> list[Body]:
        return []

    def add(self, delta: Delta) -> list[Body]:
        request, choice = self._asked.request, self._answer.choices[delta.choice]
        tells_tokens = request.return_token_ids or request.logprobs is not None
        if not (delta.text or delta.finish_reason or tells_tokens):
            return []  # nobody would miss it
        part = self._asked._part(
            self._answer,
            choice,
            delta.text,
            delta.tokens,
            self._logprobs[choice.index],
            tells_prompt=choice.index not in self._begun,
        )
        self._begun.add(choice.index)
        return [self._chunk([part])]

    def end(self) -> list[Body]:
        if not self._asked.request.includes_usage:
            return []
        return [{**self._chunk([]), "usage": usage(len(self._answer.prompt), self._answer.choices)}]

    def _chunk(self, choices: list[Body]) -> Body:
        chunk = {**_body(self._answer), "choices": choices}
        if self._asked.request.includes_usage:
            chunk["usage"] = None
        return chunk


class _LogprobWriter:
    """The log probabilities of one choice, with the place of each token in its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def write(self, tokens: Sequence[SampledToken]) -> Body:
        texts = [self._text(token.id) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [max(token.logprob, LEAST_LOGPROB) for token in tokens],
            "top_logprobs": [
                {self._text(other): max(value, LEAST_LOGPROB) for other, value in token.top}
                for token in tokens
            ],
            "text_offset": offsets,
        }

    def _text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False)


def _body(answer: Answer) -> Body:
    head = answer.head
    return {"id": head.id, "object": "text_completion", "created": head.created_s, "model": head.model}


def _read(body: bytes) -> _Asked:
    fields = drop_neutral(without_harmless(read_fields(body), HARMLESS), _NEUTRAL)
    request = check_fields(CompletionRequest, fields)
    check_completion_fields(request)
    if request.echo:
        raise unsupported(
            "echo", "an answer holds what was sampled and nothing else; put the prompt before it yourself"
        )
    return _Asked(request, _one_prompt(request))


def _one_prompt(request: CompletionRequest) -> str | list[int]:
    given = request.prompt
    if isinstance(given, list) and given and not isinstance(given[0], int):
        if len(given) > 1:
            raise unsupported("prompt", "a request has one prompt here; ask once for each, at the same time")
        given = given[0]
    if not given:
        raise invalid("prompt is empty: give text, or at least one token id", param="prompt")
    return given  # type: ignore[return-value]


COMPLETIONS = Api(
    name="completions",
    path="completions",
    id_prefix="cmpl-",
    read=_read,
    refusal=openai_error,
    refusal_event=openai_error,
)
