"""Anthropic's Messages API: answers as blocks, and the events by which they grow."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from lightning_sdk.policy.answers import Answer
from lightning_sdk.policy.apis.messages_request import MessagesRequest, parse_messages_request
from lightning_sdk.policy.apis.surface import Api, Body, EventWriter
from lightning_sdk.policy.apis.visible_text import VisibleText
from lightning_sdk.policy.engine import Delta
from lightning_sdk.policy.errors import anthropic_error
from lightning_sdk.policy.policies import Policy
from lightning_sdk.policy.sampling import SamplingRequest
from lightning_sdk.policy.tool_prompt import ToolCallText


@dataclass(frozen=True, slots=True)
class _Asked:
    request: MessagesRequest
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
        return policy.format.prompt_text(self.request.chat_messages(), self.tools)

    def whole(self, answer: Answer) -> Body:
        (choice,) = answer.choices
        parsed = answer.parse(choice)
        blocks: list[Body] = [{"type": "text", "text": parsed.content}] if parsed.content else []
        blocks += [
            {**_tool_use(), "name": call.name, "input": json.loads(call.arguments)} for call in parsed.calls
        ]
        return {
            **_head(answer),
            "content": blocks,
            **self.stop(answer),
            "usage": _usage(answer),
        }

    def writer(self, answer: Answer) -> EventWriter:
        return _Events(self, answer)

    def stop(self, answer: Answer) -> Body:
        """Why the answer ended."""
        (choice,) = answer.choices
        if choice.finish_reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if choice.finish_reason == "tool_calls":
            return {"stop_reason": "tool_use", "stop_sequence": None}
        sequence = self._stop_sequence(answer)
        return {"stop_reason": "end_turn" if sequence is None else "stop_sequence", "stop_sequence": sequence}

    def _stop_sequence(self, answer: Answer) -> str | None:
        """The stop string that was sampled: the text ends before it, the tokens do not."""
        if not self.request.stops:
            return None
        (choice,) = answer.choices
        sampled = answer.policy.engine.tokenizer.decode([token.id for token in choice.tokens])
        rest = sampled[len(choice.text) :]
        return next((stop for stop in self.request.stops if rest.startswith(stop)), None)


class _Events:
    """The events of one answer."""

    def __init__(self, asked: _Asked, answer: Answer) -> None:
        self._asked = asked
        self._answer = answer
        self._text = VisibleText(answer.uses_tools)
        self._blocks = 0
        self._speaks = False

    def begin(self) -> list[Body]:
        message = {
            **_head(self._answer),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._answer),
        }
        return [{"type": "message_start", "message": message}]

    def add(self, delta: Delta) -> list[Body]:
        text = self._text.feed(delta.text)
        if delta.finish_reason is None:
            return self._say(text)
        parsed = self._answer.parse(self._answer.choices[0])
        events = self._say(text + self._text.rest(parsed))
        if self._speaks:
            events.append(self._close())
        for call in parsed.calls:
            events += self._call(call)
        return events

    def end(self) -> list[Body]:
        return [
            {
                "type": "message_delta",
                "delta": self._asked.stop(self._answer),
                "usage": _usage(self._answer),
            },
            {"type": "message_stop"},
        ]

    def _say(self, text: str) -> list[Body]:
        if not text:
            return []
        events = [] if self._speaks else [self._open({"type": "text", "text": ""})]
        self._speaks = True
        return [*events, self._delta({"type": "text_delta", "text": text})]

    def _call(self, call: ToolCallText) -> list[Body]:
        return [
            self._open({**_tool_use(), "name": call.name, "input": {}}),
            self._delta({"type": "input_json_delta", "partial_json": call.arguments}),
            self._close(),
        ]

    def _open(self, block: Body) -> Body:
        return {"type": "content_block_start", "index": self._blocks, "content_block": block}

    def _delta(self, delta: Body) -> Body:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}

    def _close(self) -> Body:
        closed = {"type": "content_block_stop", "index": self._blocks}
        self._blocks += 1
        return closed


def _head(answer: Answer) -> Body:
    return {"id": answer.head.id, "type": "message", "role": "assistant", "model": answer.head.model}


def _tool_use() -> Body:
    return {"type": "tool_use", "id": f"toolu_{os.urandom(12).hex()}"}


def _usage(answer: Answer) -> Body:
    (choice,) = answer.choices
    return {
        "input_tokens": len(answer.prompt),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": len(choice.tokens),
    }


def _read(body: bytes) -> _Asked:
    request = parse_messages_request(body)
    return _Asked(request, request.active_tools)


MESSAGES = Api(
    name="messages",
    path="messages",
    id_prefix="msg_",
    read=_read,
    refusal=anthropic_error,
    refusal_event=anthropic_error,
    names_events=True,
)
