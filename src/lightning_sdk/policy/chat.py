"""One chat completion from request to answer, whole or as a stream, recorded before its last byte is sent."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from lightning_sdk.policy import responses
from lightning_sdk.policy.chat_format import ChatFormat
from lightning_sdk.policy.engine import Delta, Engine, SamplingParams
from lightning_sdk.policy.errors import context_exceeded, model_not_found
from lightning_sdk.policy.protocol import ChatRequest, parse_chat_request
from lightning_sdk.policy.recording import AnswerStart, TokenRecorder
from lightning_sdk.policy.responses import AnswerHead, Choice
from lightning_sdk.policy.stop_text import held_back
from lightning_sdk.policy.tool_prompt import CALL_OPEN, ParsedText

# Below this, dividing by the temperature leaves nothing but the likeliest token: taken, and recorded, as 0.
_GREEDY_BELOW = 1e-5
# Of a seed that is drawn: every reader of JSON tells integers of so many bits exactly.
_SEED_BITS = 53


@dataclass(slots=True)
class Answer:
    """One answer in the making. `choices` fill while `ChatService` runs it."""

    request: ChatRequest
    head: AnswerHead
    start: AnswerStart
    prompt: list[int]
    params: SamplingParams
    uses_tools: bool
    choices: list[Choice] = field(default_factory=list)
    # Of the policy, at the first and at the last token that was sampled; None before the first.
    versions: tuple[int, int] | None = None
    recorded: bool = False


class ChatService:
    """Answers chat completions by one engine."""

    def __init__(self, engine: Engine, recorder: TokenRecorder, model: str) -> None:
        self.engine = engine
        self.recorder = recorder
        self.model = model
        self.created_s = int(time.time())
        self._format = ChatFormat(engine.tokenizer)
        # One thread, because no tokenizer promises to be safe in several.
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="lightning-policy-prepare")

    async def begin(self, body: bytes, call_id: str) -> Answer:
        """Decide all that can be decided before sampling.

        Reading, rendering and tokenising megabytes takes seconds; a thread does it, so that the answers that
        run meanwhile go on.

        Raises:
            ApiError: a request that is none or asks for what is not implemented, another model, messages
                that the template refuses, or too many tokens.
        """
        return await asyncio.get_running_loop().run_in_executor(self._preparing, self._prepare, body, call_id)

    def _prepare(self, body: bytes, call_id: str) -> Answer:
        request = parse_chat_request(body)
        if request.model != self.model:
            raise model_not_found(request.model, self.model)
        tools = request.active_tools
        text = self._format.prompt_text([message.plain() for message in request.messages], tools)
        tokenizer, context = self.engine.tokenizer, self.engine.context_length
        least = tokenizer.least_tokens(text)
        if least > context:
            raise context_exceeded(context, least, request.token_limit, at_least=True)
        prompt = tokenizer.encode(text)
        params = self._decide_sampling(request, len(prompt))
        response_id = f"chatcmpl-{os.urandom(16).hex()}"
        return Answer(
            request=request,
            head=AnswerHead(response_id, int(time.time()), self.model),
            start=self.recorder.begin(call_id, response_id),
            prompt=prompt,
            params=params,
            uses_tools=bool(tools),
            choices=[Choice(index) for index in range(request.n or 1)],
        )

    async def complete(self, answer: Answer) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        async with aclosing(self._sample(answer)) as deltas:
            async for _ in deltas:
                pass
        body = answer.head.body("chat.completion")
        body["choices"] = [self._whole_choice(answer, choice) for choice in answer.choices]
        body["usage"] = responses.usage(len(answer.prompt), answer.choices)
        if answer.request.return_token_ids:
            body["prompt_token_ids"] = answer.prompt
        self._record(answer)
        return body

    async def stream(self, answer: Answer) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of an answer that is streamed. The last finish reason comes after the record."""
        writers = [_ChoiceStream(answer.uses_tools) for _ in answer.choices]
        opened = False
        async with aclosing(self._sample(answer)) as deltas:
            async for delta in deltas:
                if not opened:
                    # Not before the first token, so that a full queue still gets a status of its own.
                    opened = True
                    for choice in answer.choices:
                        yield self._first_chunk(answer, choice)
                choice, writer = answer.choices[delta.choice], writers[delta.choice]
                said = writer.feed(delta.text)
                if delta.finish_reason is not None:
                    said = writer.finish(self._parse(answer, choice), said)
                    if all(other.finish_reason for other in answer.choices):
                        self._record(answer)
                chunk = self._chunk(answer, choice, delta, said)
                if chunk is not None:
                    yield chunk
        options = answer.request.stream_options
        if options is not None and options.include_usage:
            chunk = answer.head.body("chat.completion.chunk")
            chunk["usage"] = responses.usage(len(answer.prompt), answer.choices)
            yield chunk

    def _decide_sampling(self, request: ChatRequest, prompt_tokens: int) -> SamplingParams:
        room = self.engine.context_length - prompt_tokens
        limit = request.token_limit
        if room < (limit or 1):
            raise context_exceeded(self.engine.context_length, prompt_tokens, limit)
        temperature = 1.0 if request.temperature is None else request.temperature
        return SamplingParams(
            temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            seed=secrets.randbits(_SEED_BITS) if request.seed is None else request.seed,
            max_tokens=limit or room,
            stop=request.stops,
            top_logprobs=request.top_logprobs or 0,
        )

    async def _sample(self, answer: Answer) -> AsyncGenerator[Delta, None]:
        """The engine's deltas, once added to the answer. One given up half-way is recorded as it is."""
        try:
            generation = self.engine.generate(answer.prompt, len(answer.choices), answer.params)
            async with aclosing(generation) as deltas:
                async for delta in deltas:
                    self._add(answer, delta)
                    yield delta
        finally:
            unfinished = not all(choice.finish_reason for choice in answer.choices)
            if unfinished and any(choice.tokens for choice in answer.choices):
                self._record(answer)

    def _add(self, answer: Answer, delta: Delta) -> None:
        choice = answer.choices[delta.choice]
        choice.tokens.extend(delta.tokens)
        choice.text += delta.text
        choice.finish_reason = delta.finish_reason
        first, _ = answer.versions or (delta.policy_version, 0)
        answer.versions = (first, delta.policy_version)
        if delta.finish_reason == "stop" and self._parse(answer, choice).calls:
            choice.finish_reason = "tool_calls"

    def _parse(self, answer: Answer, choice: Choice) -> ParsedText:
        return self._format.parse(choice.text) if answer.uses_tools else ParsedText(choice.text)

    def _record(self, answer: Answer) -> None:
        if answer.recorded or answer.versions is None:
            return
        answer.recorded = True
        self.recorder.write(
            answer.start,
            prompt=answer.prompt,
            choices=answer.choices,
            request=answer.request,
            params=answer.params,
            versions=answer.versions,
        )

    def _whole_choice(self, answer: Answer, choice: Choice) -> dict[str, Any]:
        whole: dict[str, Any] = {
            "index": choice.index,
            "message": responses.message(self._parse(answer, choice)),
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        if answer.request.logprobs:
            whole["logprobs"] = responses.logprobs(self.engine.tokenizer, choice.tokens)
        if answer.request.return_token_ids:
            whole["token_ids"] = [token.id for token in choice.tokens]
        return whole

    def _first_chunk(self, answer: Answer, choice: Choice) -> dict[str, Any]:
        chunk = self._empty_chunk(answer)
        chunk["choices"] = [
            {
                "index": choice.index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ]
        if answer.request.return_token_ids:
            chunk["prompt_token_ids"] = answer.prompt if choice.index == 0 else None
        return chunk

    def _chunk(
        self, answer: Answer, choice: Choice, delta: Delta, said: dict[str, Any]
    ) -> dict[str, Any] | None:
        """One chunk; None where nobody would miss it."""
        request = answer.request
        if not (said or delta.finish_reason or request.return_token_ids or request.logprobs):
            return None
        part: dict[str, Any] = {
            "index": choice.index,
            "delta": said,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        if request.logprobs:
            part["logprobs"] = responses.logprobs(self.engine.tokenizer, delta.tokens)
        if request.return_token_ids:
            part["token_ids"] = [token.id for token in delta.tokens]
        chunk = self._empty_chunk(answer)
        chunk["choices"] = [part]
        return chunk

    def _empty_chunk(self, answer: Answer) -> dict[str, Any]:
        chunk = answer.head.body("chat.completion.chunk")
        options = answer.request.stream_options
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
