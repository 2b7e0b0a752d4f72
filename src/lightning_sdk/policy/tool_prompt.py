"""Tools as text: how a model whose chat template knows no tools is told of them, and how its calls are read.

The system turn lists the tools as JSON. A call is written as

    <tool_call>{"name": "calculator", "arguments": {"expression": "64+16"}}</tool_call>

and what the tool said comes back in a user turn as `<result>80</result>` (if its tag begins like a call's,
small models write results themselves). Text may stand before the first call; several calls follow each other,
apart by white space only.

Reading is strict: what is not exactly that is no call but text, which is what the model said. The arguments
stay the substring that was sampled, so that the same message, written into the next prompt, is the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.decoder import JSONDecodeError, JSONDecoder
from typing import Any, NoReturn

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
RESULT_OPEN = "<result>"
RESULT_CLOSE = "</result>"

_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class ToolCallText:
    """A call as it was sampled. `arguments` is the JSON object's text, unchanged."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedText:
    """An assistant's text, taken apart: what stands before the first call, and the calls."""

    content: str
    calls: tuple[ToolCallText, ...] = ()


def describe_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """The part of the system turn that tells a model of its tools, given as the API takes them."""
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these tools:\n{lines}\n"
        f'To call one, answer with {CALL_OPEN}{{"name": ..., "arguments": ...}}{CALL_CLOSE}.'
    )


def format_call(name: str, arguments: str) -> str:
    """A call as the model is to write it. `arguments` is JSON text, and used as it is."""
    return (
        f'{CALL_OPEN}{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}{CALL_CLOSE}'
    )


def format_assistant(content: str, calls: Sequence[ToolCallText]) -> str:
    """An assistant's turn with calls."""
    return content + "\n".join(format_call(call.name, call.arguments) for call in calls)


def format_results(results: Sequence[str]) -> str:
    """The user turn that brings the results of one turn's calls."""
    return "\n".join(f"{RESULT_OPEN}{result}{RESULT_CLOSE}" for result in results)


def parse_calls(text: str) -> ParsedText:
    """Take an assistant's text apart. Never raises: text that is not well-formed is all content."""
    start = text.find(CALL_OPEN)
    if start < 0:
        return ParsedText(text)
    calls: list[ToolCallText] = []
    at = start
    while at < len(text):
        try:
            call, at = _read_call(text, at)
        except (ValueError, RecursionError):
            return ParsedText(text)
        calls.append(call)
        at = _skip_space(text, at)
    return ParsedText(text[:start], tuple(calls))


def _read_call(text: str, at: int) -> tuple[ToolCallText, int]:
    """One call at `at`, and the place after it."""
    at = _skip_space(text, _expect(text, at, CALL_OPEN))
    fields, at = _read_object(text, at)
    at = _expect(text, _skip_space(text, at), CALL_CLOSE)
    if set(fields) != {"name", "arguments"}:
        raise ValueError("a call has a name and arguments, and nothing else")
    name, arguments = fields["name"], fields["arguments"]
    if not isinstance(name.value, str) or not name.value or not isinstance(arguments.value, dict):
        raise ValueError("a call's name is a string and its arguments are an object")
    return ToolCallText(name.value, arguments.text), at


@dataclass(frozen=True, slots=True)
class _Value:
    value: Any
    text: str


def _read_object(text: str, at: int) -> tuple[dict[str, _Value], int]:
    """The fields of the JSON object at `at`, each with its text, and the place after it."""
    at = _skip_space(text, _expect(text, at, "{"))
    fields: dict[str, _Value] = {}
    while True:
        key, at = _DECODER.raw_decode(text, at)
        if not isinstance(key, str) or key in fields:
            raise ValueError("keys are strings, each once")
        start = _skip_space(text, _expect(text, _skip_space(text, at), ":"))
        value, at = _DECODER.raw_decode(text, start)
        fields[key] = _Value(value, text[start:at])
        at = _skip_space(text, at)
        if text.startswith("}", at):
            return fields, at + 1
        at = _skip_space(text, _expect(text, at, ","))


def _expect(text: str, at: int, what: str) -> int:
    if not text.startswith(what, at):
        raise JSONDecodeError(f"expected {what!r}", text, at)
    return at + len(what)


def _skip_space(text: str, at: int) -> int:
    matched = _SPACE.match(text, at)
    return matched.end() if matched else at


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = JSONDecoder(parse_constant=_no_constant)
