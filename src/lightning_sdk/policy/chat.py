"""One chat completion from request to answer, whole or as a stream, recorded before its last byte is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from lightning_sdk.policy import responses
from lightning_sdk.policy.answers import Answer, Answering, CallTags
from lightning_sdk.policy.engine import Delta
from lightning_sdk.policy.protocol import ChatRequest, parse_chat_request
from lightning_sdk.policy.responses import Choice
from lightning_sdk.policy.stop_text import held_back
from lightning_sdk.policy.tool_prompt import CALL_OPEN, ParsedText


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat completion that was asked for, and its answer in the making."""

    request: ChatRequest
    answer: Answer


class ChatService:
    """Answers chat completions."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def begin(self, body: bytes, tags: CallTags) -> Chat:
        """Decide all that can be decided before sampling.

        Raises:
            ApiError: a request that is none or asks for what is not implemented, another model, messages
                that the template refuses, or too many tokens.
        """
        return await self._answering.prepare(lambda: self._prepare(body, tags))

    def _prepare(self, body: bytes, tags: CallTags) -> Chat:
        request = parse_chat_request(body)
        policy = self._answering.policies.get(tags.policy, request.model, routed=tags.routed)
        tools = request.active_tools
        text = policy.format.prompt_text([message.plain() for message in request.messages], tools)
        answer = self._answering.start(tags, policy, text, request.sampling(), uses_tools=bool(tools))
        return Chat(request, answer)

    async def complete(self, chat: Chat) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        answer = chat.answer
        await self._answering.finish(answer)
        body = answer.head.body("chat.completion")
        body["choices"] = [_whole_choice(chat, choice) for choice in answer.choices]
        body["usage"] = responses.usage(len(answer.prompt), answer.choices)
        if chat.request.return_token_ids:
            body["prompt_token_ids"] = answer.prompt
        self._answering.record(answer)
        return body

    async def stream(self, chat: Chat) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of an answer that is streamed. The last finish reason comes after the record."""
        answer = chat.answer
        writers = [_ChoiceStream(answer.uses_tools) for _ in answer.choices]
        opened = False
        async with aclosing(self._answering.deltas(answer)) as deltas:
            async for delta in deltas:
                if not opened:
                    # Not before the first token, so that a full queue still gets a status of its own.
                    opened = True
                    for choice in answer.choices:
                        yield _first_chunk(chat, choice)
                choice, writer = answer.choices[delta.choice], writers[delta.choice]
                said = writer.feed(delta.text)
                if delta.finish_reason is not None:
                    said = writer.finish(answer.parse(choice), said)
                    if all(other.finish_reason for other in answer.choices):
                        self._answering.record(answer)
                chunk = _chunk(chat, choice, delta, said)
                if chunk is not None:
                    yield chunk
        options = chat.request.stream_options
        if options is not None and options.include_usage:
            chunk = answer.head.body("chat.completion.chunk")
            chunk["usage"] = responses.usage(len(answer.prompt), answer.choices)
            yield chunk


def _whole_choice(chat: Chat, choice: Choice) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "index": choice.index,
        "message": responses.message(chat.answer.parse(choice)),
        "logprobs": None,
        "finish_reason": choice.finish_reason,
    }
    if chat.request.logprobs:
        whole["logprobs"] = responses.logprobs(chat.answer.policy.engine.tokenizer, choice.tokens)
    if chat.request.return_token_ids:
        whole["token_ids"] = [token.id for token in choice.tokens]
    return whole


def _first_chunk(chat: Chat, choice: Choice) -> dict[str, Any]:
    chunk = _empty_chunk(chat)
    chunk["choices"] = [
        {
            "index": choice.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    if chat.request.return_token_ids:
        chunk["prompt_token_ids"] = chat.answer.prompt if choice.index == 0 else None
    return chunk


def _chunk(chat: Chat, choice: Choice, delta: Delta, said: dict[str, Any]) -> dict[str, Any] | None:
    """One chunk; None where nobody would miss it."""
    request = chat.request
    if not (said or delta.finish_reason or request.return_token_ids or request.logprobs):
        return None
    part: dict[str, Any] = {
        "index": choice.index,
        "delta": said,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
    }
    if request.logprobs:
        part["logprobs"] = responses.logprobs(chat.answer.policy.engine.tokenizer, delta.tokens)
    if request.return_token_ids:
        part["token_ids"] = [token.id for token in delta.tokens]
    chunk = _empty_chunk(chat)
    chunk["choices"] = [part]
    return chunk


def _empty_chunk(chat: Chat) -> dict[str, Any]:
    chunk = chat.answer.head.body("chat.completion.chunk")
    options = chat.request.stream_options
    if options is not None and options.include_usage:
        chunk["usage"] = None
    return chunk


class _ChoiceStream:
    """What of a choice's text may be streamed: what cannot become part of a tool call any more."""

    def __init__(self, uses_tools: bool) -> None:
        self._uses_tools = uses_tools
        self._held = ""
        self._streamed = 0

    def feed(self, text: str) -> dict[str, Any]:
        """More text; the delta to stream now."""
        if not self._uses_tools:
            return self._say(text)
        self._held += text
        call = self._held.find(CALL_OPEN)
        keep = call if call >= 0 else len(self._held) - held_back(self._held, (CALL_OPEN,))
        ready, self._held = self._held[:keep], self._held[keep:]
        return self._say(ready)

    def finish(self, parsed: ParsedText, said: dict[str, Any]) -> dict[str, Any]:
        """The text is whole; the last delta to stream, of which `said` is a part."""
        text = said.get("content", "") + parsed.content[self._streamed :]
        last: dict[str, Any] = {"content": text} if text else {}
        if parsed.calls:
            calls = responses.tool_calls(parsed)
            last["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
        return last

    def _say(self, text: str) -> dict[str, Any]:
        self._streamed += len(text)
        return {"content": text} if text else {}
