"""OpenAI's Responses API: answers as items, and the events by which they grow. No response is kept here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning_sdk.policy.answers import Answer
from lightning_sdk.policy.apis.chat import token_logprobs, usage
from lightning_sdk.policy.apis.responses_request import ResponsesRequest, echoed, parse_responses_request
from lightning_sdk.policy.apis.surface import Api, Body, EventWriter
from lightning_sdk.policy.apis.visible_text import VisibleText
from lightning_sdk.policy.engine import Delta, SampledToken
from lightning_sdk.policy.errors import ApiError, openai_error
from lightning_sdk.policy.policies import Policy
from lightning_sdk.policy.sampling import SamplingRequest
from lightning_sdk.policy.tool_prompt import ToolCallText


@dataclass(frozen=True, slots=True)
class _Asked:
    request: ResponsesRequest
    tools: list[dict[str, Any]]

    @property
    def model(self) -> str:
        return self.request.model

    @property
    def is_streamed(self) -> bool:
        return bool(self.request.stream)

    @property
    def uses_tools(self) -> bool:
        return bool(self.tools)

    def sampling(self) -> SamplingRequest:
        return self.request.sampling()

    def prompt(self, policy: Policy) -> str:
        return policy.format.prompt_text(self.request.messages(), self.tools)

    def whole(self, answer: Answer) -> Body:
        (choice,) = answer.choices
        parsed = answer.parse(choice)
        items = [_call_item(call) for call in parsed.calls]
        if parsed.content or not items:
            logprobs = self.logprobs(answer, choice.tokens)
            items.insert(0, _message_item(_new_id("msg"), [_text_part(parsed.content, logprobs)]))
        return self.response(answer, items)

    def writer(self, answer: Answer) -> EventWriter:
        return _Events(self, answer)

    def logprobs(self, answer: Answer, tokens: Sequence[SampledToken]) -> list[Body]:
        """Those that were asked for."""
        if not self.request.tells_logprobs:
            return []
        return token_logprobs(answer.policy.engine.tokenizer, tokens)

    def response(self, answer: Answer, items: list[Body] | None) -> Body:
        """The response with these items; None: it has begun."""
        (choice,) = answer.choices
        cut = choice.finish_reason == "length"
        status = "in_progress" if items is None else "incomplete" if cut else "completed"
        counted = usage(len(answer.prompt), answer.choices)
        return {
            "id": answer.head.id,
            "object": "response",
            "created_at": answer.head.created_s,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": answer.head.model,
            "output": items or [],
            **echoed(self.request),
            "usage": None
            if items is None
            else {
                "input_tokens": counted["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": counted["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counted["total_tokens"],
            },
        }


class _Events:
    """The events of one answer."""

    def __init__(self, asked: _Asked, answer: Answer) -> None:
        self._asked = asked
        self._answer = answer
        self._text = VisibleText(answer.uses_tools)
        self._said = ""
        self._message_id: str | None = None
        self._logprobs: list[Body] = []
        self._items: list[Body] = []
        self._sequence = 0

    def begin(self) -> list[Body]:
        begun = self._asked.response(self._answer, None)
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
        ]

    def add(self, delta: Delta) -> list[Body]:
        logprobs = self._asked.logprobs(self._answer, delta.tokens)
        self._logprobs += logprobs
        text = self._text.feed(delta.text)
        if delta.finish_reason is None:
            return self._say(text, logprobs) if text else []
        parsed = self._answer.parse(self._answer.choices[0])
        text += self._text.rest(parsed)
        events = self._say(text, logprobs) if text or not (self._said or parsed.calls) else []
        if self._message_id is not None:
            events += self._close_message(self._message_id)
        for call in parsed.calls:
            events += self._call(call)
        return events

    def end(self) -> list[Body]:
        response = self._asked.response(self._answer, self._items)
        return [self._event(f"response.{response['status']}", response=response)]

    def _say(self, text: str, logprobs: list[Body]) -> list[Body]:
        events = []
        if self._message_id is None:
            self._message_id = _new_id("msg")
            item = _message_item(self._message_id, [], status="in_progress")
            events.append(self._event("response.output_item.added", output_index=0, item=item))
            events.append(self._part_event("response.content_part.added", part=_text_part("", [])))
        if text:
            self._said += text
            events.append(self._part_event("response.output_text.delta", delta=text, logprobs=logprobs))
        return events

    def _close_message(self, message_id: str) -> list[Body]:
        part = _text_part(self._said, self._logprobs)
        item = _message_item(message_id, [part])
        self._items.append(item)
        return [
            self._part_event("response.output_text.done", text=self._said, logprobs=self._logprobs),
            self._part_event("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=0, item=item),
        ]

    def _call(self, call: ToolCallText) -> list[Body]:
        item = _call_item(call)
        at = {"output_index": len(self._items), "item_id": item["id"]}
        self._items.append(item)
        begun = {**item, "arguments": "", "status": "in_progress"}
        kind = "response.function_call_arguments"
        return [
            self._event("response.output_item.added", output_index=at["output_index"], item=begun),
            self._event(f"{kind}.delta", **at, delta=call.arguments),
            self._event(f"{kind}.done", **at, name=call.name, arguments=call.arguments),
            self._event("response.output_item.done", output_index=at["output_index"], item=item),
        ]

    def _part_event(self, kind: str, **told: Any) -> Body:
        return self._event(kind, item_id=self._message_id, output_index=0, content_index=0, **told)

    def _event(self, kind: str, **told: Any) -> Body:
        event = {"type": kind, "sequence_number": self._sequence, **told}
        self._sequence += 1
        return event


def _text_part(text: str, logprobs: list[Body]) -> Body:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _message_item(message_id: str, content: list[Body], *, status: str = "completed") -> Body:
    return {
        "id": message_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def _call_item(call: ToolCallText) -> Body:
    return {
        "id": _new_id("fc"),
        "type": "function_call",
        "status": "completed",
        "call_id": _new_id("call"),
        "name": call.name,
        "arguments": call.arguments,
    }


def _new_id(kind: str) -> str:
    return f"{kind}_{os.urandom(12).hex()}"


def _read(body: bytes) -> _Asked:
    request = parse_responses_request(body)
    return _Asked(request, request.active_tools)


def _refusal_event(error: ApiError) -> Body:
    told = openai_error(error)["error"]
    return {
        "type": "error",
        "code": told["code"],
        "message": told["message"],
        "param": told["param"],
        "error": told,
    }


RESPONSES = Api(
    name="responses",
    path="responses",
    id_prefix="resp_",
    read=_read,
    refusal=openai_error,
    refusal_event=_refusal_event,
    names_events=True,
)
