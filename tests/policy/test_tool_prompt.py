"""The text of tool calls.

1. What `format_assistant` writes, `parse_calls` reads back, arguments to the letter.
2. What is not exactly a call is content: nothing is lost, and nothing raises.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_sdk.policy.tool_prompt import (
    ParsedText,
    ToolCallText,
    describe_tools,
    format_assistant,
    format_call,
    format_results,
    parse_calls,
)

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "64+16"}}</tool_call>'

_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_arguments = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
    st.dictionaries(st.text(), _json_values, max_size=3),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
_calls = st.lists(st.builds(ToolCallText, st.text(min_size=1), _arguments), min_size=1, max_size=3)
_content = st.text().filter(lambda text: "<tool_call>" not in text and not text.endswith("<"))


@given(_content, _calls)
def test_what_is_written_is_read_back_to_the_letter(content: str, calls: list[ToolCallText]) -> None:
    text = format_assistant(content, calls)
    parsed = parse_calls(text)
    assert parsed == ParsedText(content, tuple(calls))
    assert format_assistant(parsed.content, parsed.calls) == text


@given(st.text())
def test_no_text_raises_and_none_is_lost(text: str) -> None:
    for tried in (text, "<tool_call>" + text, f"<tool_call>{text}</tool_call>", CALL + text):
        parsed = parse_calls(tried)
        assert parsed.calls or parsed.content == tried


@given(st.integers(min_value=0, max_value=len(CALL) - 1))
def test_a_call_cut_anywhere_is_content(length: int) -> None:
    assert parse_calls(CALL[:length]) == ParsedText(CALL[:length])


def test_a_call_is_found_after_text() -> None:
    assert parse_calls(f"Let me see.\n{CALL}") == ParsedText(
        "Let me see.\n", (ToolCallText("calculator", '{"expression": "64+16"}'),)
    )


def test_white_space_and_order_of_keys_do_not_matter() -> None:
    spaced = (
        '<tool_call>\n{"arguments":{"a" :1} ,"name":"f"}\n</tool_call>\n\n'
        '<tool_call>{"name":"g","arguments":{}}</tool_call>\n'
    )
    assert parse_calls(spaced).calls == (ToolCallText("f", '{"a" :1}'), ToolCallText("g", "{}"))


@pytest.mark.parametrize(
    "text",
    [
        CALL + " and more",
        CALL + "<tool_call>",
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "id": 1}</tool_call>',
        '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>["f", {}]</tool_call>',
        "<tool_call>" + '{"name": "f", "arguments": {"a": ' + "[" * 100_000,
    ],
)
def test_what_is_not_well_formed_is_content(text: str) -> None:
    assert parse_calls(text) == ParsedText(text)


def test_the_system_turn_lists_each_tool_as_json_and_says_how_to_call() -> None:
    function = {"name": "calculator", "description": "Works out a sum.", "parameters": {"type": "object"}}
    told = describe_tools([{"type": "function", "function": function}])
    assert json.loads(told.splitlines()[1]) == function
    assert "<tool_call>" in told


def test_results_come_in_the_order_of_the_calls() -> None:
    assert format_results(["1", "2"]) == "<result>1</result>\n<result>2</result>"


def test_a_name_is_written_as_json() -> None:
    assert format_call('a"b', "{}") == '<tool_call>{"name": "a\\"b", "arguments": {}}</tool_call>'
