"""Conversations of other APIs, said as chat messages: so that all observations and actions are of one form.

What stands between two turns of others is one message of the model's: its reasoning, text and tool calls
together, as a chat completion has them. Text in parts becomes one string; parts that are no text stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Types of parts that are text, in whatever API.
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "reasoning_text", "summary_text"})


class Turn:
    """What the model says in one go, while it is read. Kept in pieces, so that long turns stay linear."""

    def __init__(self) -> None:
        self._contents: list[Any] = []
        self._thoughts: list[str] = []
        self._refusals: list[str] = []
        self._tool_calls: list[dict[str, Any]] = []

    def say(self, content: Any) -> None:
        """It says something more; `content` is text or, where there is more than text, parts."""
        if content is not None:
            self._contents.append(content)

    def think(self, text: str) -> None:
        """It reasons."""
        self._thoughts.append(text)

    def refuse(self, text: str) -> None:
        """It refuses."""
        self._refusals.append(text)

    def call_tool(self, call_id: Any, name: Any, arguments: Any) -> None:
        """It calls a function; `arguments` is the text of its arguments."""
        function = {"name": name, "arguments": arguments}
        self._tool_calls.append({"id": call_id, "type": "function", "function": function})

    def call_custom_tool(self, call_id: Any, name: Any, text: Any) -> None:
        """It calls a tool that takes text."""
        self._tool_calls.append({"id": call_id, "type": "custom", "custom": {"name": name, "input": text}})

    def message(self) -> dict[str, Any]:
        """As a chat completion has it."""
        message: dict[str, Any] = {"role": "assistant", "content": _joined(self._contents)}
        if any(self._thoughts):
            message["reasoning_content"] = "".join(self._thoughts)
        if any(self._refusals):
            message["refusal"] = "".join(self._refusals)
        if self._tool_calls:
            message["tool_calls"] = self._tool_calls
        return message


class Conversation:
    """Messages, while they are read."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._turn: Turn | None = None

    def add(self, message: dict[str, Any]) -> None:
        """A message of somebody else's."""
        self._close()
        self._messages.append(message)

    @property
    def turn(self) -> Turn:
        """The model's turn that goes on, or begins."""
        if self._turn is None:
            self._turn = Turn()
        return self._turn

    def messages(self) -> list[dict[str, Any]]:
        """All of them, at the end."""
        self._close()
        return self._messages

    def _close(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None


def _joined(contents: list[Any]) -> Any:
    if not contents:
        return None
    if all(isinstance(content, str) for content in contents):
        return "".join(contents)
    parts: list[Any] = []
    for content in contents:
        parts += content if isinstance(content, list) else [{"type": "text", "text": content}]
    return parts


def content_of(content: Any) -> Any:
    """A content as a chat message has it: the text, or the parts where some are no text."""
    if not isinstance(content, list):
        return content
    if all(_is_text(part) for part in content):
        return text_of(content)
    return [_chat_part(part) for part in content]


def text_of(parts: Iterable[Any]) -> str:
    """The text in parts."""
    return "".join(part["text"] for part in parts if _is_text(part))


def has_type(part: Any, kind: str) -> bool:
    """Whether a part, or a block, is of this kind."""
    return isinstance(part, Mapping) and part.get("type") == kind


def _is_text(part: Any) -> bool:
    if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
        return False
    kind = part.get("type")
    return isinstance(kind, str) and kind in _TEXT_PARTS


def _chat_part(part: Any) -> Any:
    return {"type": "text", "text": part["text"]} if _is_text(part) else part


def function_tool(name: Any, description: Any, parameters: Any, **more: Any) -> dict[str, Any]:
    """A tool as a chat request has it."""
    told = {"description": description, "parameters": parameters, **more}
    return {
        "type": "function",
        "function": {"name": name, **{key: value for key, value in told.items() if value is not None}},
    }
