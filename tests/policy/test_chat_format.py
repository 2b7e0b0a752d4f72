"""Messages to a prompt, by a template that knows tools and by one that does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightning_sdk.policy.chat_format import ChatFormat
from lightning_sdk.policy.errors import ApiError
from support.policy_fakes import ByteTokenizer

TOOL = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}
ARGUMENTS = '{"expression" : "64+16"}'


def _call(place: int) -> dict[str, Any]:
    return {
        "id": f"c{place}",
        "type": "function",
        "function": {"name": "calculator", "arguments": ARGUMENTS},
    }


CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "64+16?"},
    {"role": "assistant", "content": "Well. ", "tool_calls": [_call(1), _call(2)]},
    {"role": "tool", "tool_call_id": "c1", "content": "80"},
    {"role": "tool", "tool_call_id": "c2", "content": "80"},
]


def _prompt(tokenizer: ByteTokenizer, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    return ChatFormat(tokenizer).prompt_text(messages, tools)


def test_without_tools_in_the_template_the_conversation_becomes_plain_turns() -> None:
    prompt = _prompt(ByteTokenizer(), CONVERSATION, [TOOL])
    system, rest = prompt.split("<|im_end|>\n", 1)
    assert json.dumps(TOOL["function"]) in system
    call = f'<tool_call>{{"name": "calculator", "arguments": {ARGUMENTS}}}</tool_call>'
    assert rest == (
        "<|im_start|>user\n64+16?<|im_end|>\n"
        f"<|im_start|>assistant\nWell. {call}\n{call}<|im_end|>\n"
        "<|im_start|>user\n<result>80</result>\n<result>80</result><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_tools_join_a_system_turn_that_is_there() -> None:
    prompt = _prompt(ByteTokenizer(), [{"role": "system", "content": "Be brief."}, CONVERSATION[0]], [TOOL])
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou can call these tools:\n")
    assert prompt.count("<|im_start|>system") == 1


def test_without_tools_nothing_is_told_of_them() -> None:
    assert _prompt(ByteTokenizer(), CONVERSATION[:1], []) == (
        "<|im_start|>user\n64+16?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_sampled_call_is_written_again_as_it_was_sampled() -> None:
    text = f'Well. <tool_call>{{"name": "calculator", "arguments": {ARGUMENTS}}}</tool_call>'
    chat_format = ChatFormat(ByteTokenizer())
    parsed = chat_format.parse(text)
    call = {"id": "c", "function": {"name": parsed.calls[0].name, "arguments": parsed.calls[0].arguments}}
    again = {"role": "assistant", "content": parsed.content, "tool_calls": [call]}
    assert f"<|im_start|>assistant\n{text}<|im_end|>" in _prompt(
        ByteTokenizer(), [CONVERSATION[0], again], []
    )


def test_a_template_that_knows_tools_is_used_and_gets_arguments_as_they_are() -> None:
    tokenizer = ByteTokenizer(knows_tools=True)
    assert ChatFormat(tokenizer).template_knows_tools
    prompt = _prompt(tokenizer, CONVERSATION, [TOOL])
    assert prompt.startswith("<|im_start|>system\n# Tools\n")
    assert f'"arguments": {ARGUMENTS}' in prompt
    assert "<|im_start|>tool\n80<|im_end|>" in prompt


def test_a_template_that_serialises_arguments_itself_gets_them_parsed() -> None:
    tokenizer = ByteTokenizer(knows_tools=True, arguments_as_text=False)
    assert ChatFormat(tokenizer).template_knows_tools
    assert '"arguments": {"expression": "64+16"}' in _prompt(tokenizer, CONVERSATION, [TOOL])


def test_a_template_that_drops_calls_does_not_count_as_knowing_tools() -> None:
    class Forgetful(ByteTokenizer):
        def _calls(self, message: Any) -> str:
            return ""

    assert not ChatFormat(Forgetful(knows_tools=True)).template_knows_tools


def test_messages_that_the_template_refuses_are_a_400_with_its_reason() -> None:
    class Strict(ByteTokenizer):
        def render(self, messages: Any, tools: Any) -> str:
            if messages[0]["role"] == "assistant":
                raise ValueError("the first turn is the user's")
            return super().render(messages, tools)

    with pytest.raises(ApiError, match="the first turn is the user's") as caught:
        ChatFormat(Strict()).prompt_text([{"role": "assistant", "content": "hi"}], [])
    assert (caught.value.status, caught.value.param) == (400, "messages")
