"""What the endpoint accepts: all that it honours, what changes nothing, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightning_sdk.policy.apis.chat_request import ChatRequest, parse_chat_request
from lightning_sdk.policy.errors import ApiError

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def _parse(**fields: Any) -> ChatRequest:
    return parse_chat_request(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


def _refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _parse(**fields)
    assert caught.value.status == 400
    assert caught.value.kind == "invalid_request_error"
    return caught.value


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[1]", b"null", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat_request(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user", "content": 3}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}, "messages[0].tool_calls[0].id"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ],
)
def test_a_wrong_value_is_refused_by_its_place(fields: dict[str, Any], param: str) -> None:
    assert _refused(**fields).param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("audio", {"voice": "x"}),
        ("parallel_tool_calls", False),
        ("functions", [{"name": "f"}]),
        ("reasoning_effort", "high"),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("made_up", 1),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(name: str, value: Any) -> None:
    error = _refused(**{name: value})
    assert (error.param, error.code) == (name, "unsupported_parameter")


def test_what_changes_nothing_is_accepted() -> None:
    _parse(
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        response_format={"type": "text"},
        logit_bias={},
        frequency_penalty=0,
        parallel_tool_calls=True,
        audio=None,
        tool_choice="auto",
    )


def test_an_answer_given_back_as_the_openai_package_dumps_it_is_accepted() -> None:
    dumped = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [CALL],
    }
    request = _parse(messages=[USER, dumped, {"role": "tool", "tool_call_id": "c1", "content": "80"}])
    assert [message.plain() for message in request.messages][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "80", "tool_call_id": "c1"},
    ]


def test_text_parts_are_joined_and_a_developer_is_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = _parse(messages=[{"role": "developer", "content": parts}, USER])
    assert request.messages[0].plain() == {"role": "system", "content": "ab"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "hi", "tool_calls": [CALL]},
        {"role": "tool", "content": "80"},
        {"role": "user", "content": "hi", "tool_call_id": "c1"},
        {"role": "user", "content": "hi", "audio": {"id": "a"}},
    ],
)
def test_a_message_that_does_not_fit_its_role_is_refused(message: dict[str, Any]) -> None:
    param = _refused(messages=[USER, message]).param
    assert param is not None
    assert param.startswith("messages[1]")


def test_tools_are_kept_as_they_are_and_told_unless_none_may_be_called() -> None:
    schema = {"type": "object", "properties": {"x": {"default": None}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert _parse(tools=[tool]).active_tools == [tool]
    assert _parse(tools=[tool], tool_choice="none").active_tools == []
