"""OpenAI-style messages to the text of a prompt, and sampled text back to an assistant's message.

A model's chat template is used as it is where it knows tools, in the form that `tool_prompt` reads; that is
found out by rendering a probe, never by a name. Otherwise `tool_prompt` tells of tools in plain text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_sdk.policy.engine import Tokenizer
from lightning_sdk.policy.errors import invalid
from lightning_sdk.policy.tool_prompt import (
    ParsedText,
    ToolCallText,
    describe_tools,
    format_assistant,
    format_results,
    parse_calls,
)

Message = Mapping[str, Any]
Tool = Mapping[str, Any]

_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool_q7",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "integer"}}},
    },
}
# Spelled as no serializer would, so that it is seen again only where a template takes arguments as text.
_PROBE_ARGUMENTS = '{"probe_key" :  7}'
_PROBE_RESULT = "probe_result_q7"


class ChatFormat:
    """One model's way of writing conversations."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Whether the template writes arguments as they are: then a sampled call is written again as it was.
        self._arguments_as_text = self._template_knows_tools(_PROBE_ARGUMENTS, verbatim=True)
        self.template_knows_tools = self._arguments_as_text or self._template_knows_tools(
            json.loads(_PROBE_ARGUMENTS), verbatim=False
        )

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """The prompt after which the assistant speaks.

        Args:
            messages: as `protocol` leaves them: `content` is a string; `tool_calls` where there are any.
            tools: as the API takes them; empty where none may be called.

        Raises:
            ApiError: the chat template refuses the messages.
        """
        if self.template_knows_tools:
            written = [self._for_template(message) for message in messages]
            told = list(tools)
        else:
            written, told = _as_plain_turns(messages, tools), []
        try:
            return self._tokenizer.render(written, told or None)
        except ValueError as error:
            raise invalid(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from None

    def parse(self, text: str) -> ParsedText:
        """Take apart what the assistant said where it may call tools."""
        return parse_calls(text)

    def _for_template(self, message: Message) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if not calls:
            return dict(message)
        return {**message, "tool_calls": [self._call_for_template(call) for call in calls]}

    def _call_for_template(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        if not self._arguments_as_text:
            try:
                function["arguments"] = json.loads(function["arguments"])
            except ValueError:
                pass  # what a model once wrote, however broken, is still what it wrote
        return {**call, "function": function}

    def _template_knows_tools(self, arguments: Any, *, verbatim: bool) -> bool:
        """Whether a tool, a call (in the form that we read) and its result come out of the template."""
        call = {
            "id": "call_probe",
            "type": "function",
            "function": {"name": "probe_tool_q7", "arguments": arguments},
        }
        question: Message = {"role": "user", "content": "probe"}
        answered: list[Message] = [
            question,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_probe", "content": _PROBE_RESULT},
        ]
        try:
            asked = self._tokenizer.render([question], [_PROBE_TOOL])
            text = self._tokenizer.render(answered, [_PROBE_TOOL])
        except ValueError:
            return False
        if "probe_key" not in asked or _PROBE_RESULT not in text:
            return False
        return any(
            call.name == "probe_tool_q7"
            and (call.arguments == _PROBE_ARGUMENTS if verbatim else "7" in call.arguments)
            for call in _calls_anywhere(text)
        )


def _calls_anywhere(text: str) -> list[ToolCallText]:
    """All calls in a rendered conversation, where other text surrounds each."""
    pieces = text.split("<tool_call>")[1:]
    found: list[ToolCallText] = []
    for piece in pieces:
        body, closed, _ = piece.partition("</tool_call>")
        if closed:
            found.extend(parse_calls(f"<tool_call>{body}</tool_call>").calls)
    return found


def _as_plain_turns(messages: Sequence[Message], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The same conversation in turns of system, user and assistant alone."""
    turns: list[dict[str, Any]] = []
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(message["content"])
            continue
        if results:
            turns.append({"role": "user", "content": format_results(results)})
            results = []
        turns.append({"role": message["role"], "content": _plain_content(message)})
    if results:
        turns.append({"role": "user", "content": format_results(results)})
    if tools:
        _tell_tools(turns, tools)
    return turns


def _plain_content(message: Message) -> str:
    calls = [
        ToolCallText(call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    content: str = message["content"]
    return format_assistant(content, calls) if calls else content


def _tell_tools(turns: list[dict[str, Any]], tools: Sequence[Tool]) -> None:
    told = describe_tools(tools)
    if turns and turns[0]["role"] == "system":
        turns[0] = {"role": "system", "content": f"{turns[0]['content']}\n\n{told}"}
    else:
        turns.insert(0, {"role": "system", "content": told})
