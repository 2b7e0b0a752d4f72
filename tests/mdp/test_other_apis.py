"""Calls of other APIs than chat completions: what was asked and answered, in the form of chat messages.

1. Completions: one prompt, of text or of token ids; the ids of the body count.
2. Responses and Anthropic's messages: text, reasoning, tool calls, usage and finish reason; history, tools and
   format of the request. An answer that is sent back in the next request is the same message there.
3. A stream is what the API would have answered without; one that was cut is what came of it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightning_sdk.mdp import CallView, assemble, decode_call
from lightning_sdk.mdp.apis import APIS
from lightning_sdk.mdp.response_ids import response_id
from lightning_sdk.records import Call
from support.record_factory import Tape, to_json


def view(api: str, request: dict[str, Any], body: Any = None, **fields: Any) -> CallView:
    tape = Tape()
    tape.call("ca_1", body, request=request, api=api, **fields)
    return decode_call(tape.records[-1], [])


def observation(api: str, request: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in APIS[api].read_observation(request).items() if value is not None}


COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "text": " four",
            "finish_reason": "stop",
            "prompt_token_ids": [1, 5, 9],
            "token_ids": [7, 2],
            "logprobs": {"tokens": [" four", ""], "token_logprobs": [-0.5, -1.0], "text_offset": [0, 5]},
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
COMPLETION_EVENTS: list[Any] = [
    {
        "id": "cmpl-1",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "text": " fo",
                "prompt_token_ids": [1, 5, 9],
                "token_ids": [7],
                "logprobs": {"tokens": [" fo"], "token_logprobs": [-0.5]},
                "finish_reason": None,
            }
        ],
    },
    {
        "id": "cmpl-1",
        "choices": [
            {
                "index": 0,
                "text": "ur",
                "token_ids": [2],
                "logprobs": {"token_logprobs": [-1.0]},
                "finish_reason": "stop",
            }
        ],
    },
    {"id": "cmpl-1", "choices": [], "usage": COMPLETION["usage"]},
    b"[DONE]",
]


@pytest.mark.parametrize(
    "answer", [{"body": COMPLETION}, {"events": COMPLETION_EVENTS}], ids=["body", "stream"]
)
@pytest.mark.parametrize("prompt", ["2 + 2 =", ["2 + 2 ="], [1, 5, 9], [[1, 5, 9]]])
def test_a_completion(prompt: Any, answer: dict[str, Any]) -> None:
    call = view("completions", {"model": "tiny", "prompt": prompt, "max_tokens": 2}, **answer)
    assert (call.response_id, call.model, call.usage) == ("cmpl-1", "tiny", COMPLETION["usage"])
    (choice,) = call.choices
    assert choice.message == {"role": "assistant", "content": " four"}
    assert (choice.finish_reason, list(choice.token_ids or ()), list(choice.logprobs or ())) == (
        "stop",
        [7, 2],
        [-0.5, -1.0],
    )
    assert (list(call.prompt_token_ids or ()), call.fidelity, call.problem) == ([1, 5, 9], "engine", None)
    single = prompt[0] if isinstance(prompt[0], str | list) and not isinstance(prompt, str) else prompt
    assert observation("completions", call.request) == {"prompt": single}


@pytest.mark.parametrize(
    "request_",
    [{"prompt": ["a", "b"]}, {"prompt": []}, {}, {"prompt": [[1], [2]]}, {"prompt": "a", "echo": True}],
)
def test_a_completion_of_several_prompts_or_with_its_prompt_is_unreadable(request_: dict[str, Any]) -> None:
    assert view("completions", request_, COMPLETION).problem == "unreadable"


MESSAGE_ITEM = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
}
REASONING_ITEM = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "It asks"}, {"type": "summary_text", "text": " for rain."}],
}
CALL_ITEM = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "weather",
    "arguments": '{"city": "Oslo"}',
    "status": "completed",
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "tiny",
    "output": [REASONING_ITEM, MESSAGE_ITEM, CALL_ITEM],
    "usage": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13},
}
ANSWER = {
    "role": "assistant",
    "content": "Let me look.",
    "reasoning_content": "It asks for rain.",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    ],
}


def test_a_response() -> None:
    call = view("responses", {"model": "tiny", "input": "Is it raining?", "max_output_tokens": 9}, RESPONSE)
    assert (call.response_id, call.model, call.problem) == ("resp_1", "tiny", "no_token_ids")
    assert call.usage is not None
    assert (call.usage["prompt_tokens"], call.usage["completion_tokens"]) == (9, 4)
    assert call.sampling["requested"] == {"max_output_tokens": 9}
    assert [(c.index, c.message, c.finish_reason) for c in call.choices] == [(0, ANSWER, "tool_calls")]


@pytest.mark.parametrize(
    ("fields", "finish_reason"),
    [
        ({"output": [MESSAGE_ITEM]}, "stop"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "incomplete", "incomplete_details": None}, "incomplete"),
        ({"status": "failed"}, "failed"),
        ({"status": "in_progress"}, None),
    ],
)
def test_how_a_response_ended(fields: dict[str, Any], finish_reason: str | None) -> None:
    call = view("responses", {"input": "x"}, {**RESPONSE, **fields})
    assert call.choices[0].finish_reason == finish_reason


def test_a_refusal_and_a_custom_tool() -> None:
    output = [
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "web_search_call", "id": "ws_1"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "shell", "input": "ls"},
    ]
    call = view("responses", {"input": "x"}, {**RESPONSE, "output": output})
    assert call.choices[0].message == {
        "role": "assistant",
        "content": None,
        "refusal": "No.",
        "tool_calls": [{"id": "call_2", "type": "custom", "custom": {"name": "shell", "input": "ls"}}],
    }


def test_log_probabilities_of_a_response_count_only_if_all_its_text_has_them() -> None:
    def part(text: str, *values: float) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": text,
            "logprobs": [{"token": "t", "logprob": v} for v in values],
        }

    def logprobs(*parts: Any) -> Any:
        item = {"type": "message", "role": "assistant", "content": list(parts)}
        return view("responses", {"input": "x"}, {**RESPONSE, "output": [item]}).choices[0].logprobs

    assert logprobs(part("a", -0.5), part("b", -1.0, -2.0)) == [-0.5, -1.0, -2.0]
    assert logprobs(part("a", -0.5), part("b")) is None


def test_the_input_of_a_response_is_the_chat_that_it_means() -> None:
    request = {
        "model": "tiny",
        "instructions": "Be brief.",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Is it "},
                    {"type": "input_text", "text": "raining?"},
                ],
            },
            REASONING_ITEM,
            MESSAGE_ITEM,
            CALL_ITEM,
            {"type": "function_call_output", "call_id": "call_1", "output": "yes"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "And now?"},
                    {"type": "input_image", "image_url": "u"},
                ],
            },
        ],
        "tools": [
            {
                "type": "function",
                "name": "weather",
                "description": "d",
                "parameters": {"type": "object"},
                "strict": True,
            },
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "function", "name": "weather"},
        "text": {
            "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
        },
        "previous_response_id": "resp_0",
    }
    assert observation("responses", request) == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Is it raining?"},
            ANSWER,
            {"role": "tool", "tool_call_id": "call_1", "content": "yes"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "And now?"}, {"type": "input_image", "image_url": "u"}],
            },
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "d",
                    "parameters": {"type": "object"},
                    "strict": True,
                },
            },
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "previous_response_id": "resp_0",
    }


def with_type(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


RESPONSE_EVENTS = [
    with_type("response.created", response={**RESPONSE, "status": "in_progress", "output": []}),
    with_type("response.output_item.added", output_index=0, item={**REASONING_ITEM, "summary": []}),
    with_type("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="It "),
    with_type("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="asks"),
    with_type("response.reasoning_summary_text.delta", output_index=0, summary_index=1, delta=" for rain."),
    with_type("response.output_item.done", output_index=0, item=REASONING_ITEM),
    with_type("response.output_item.added", output_index=1, item={**MESSAGE_ITEM, "content": []}),
    with_type("response.output_text.delta", output_index=1, content_index=0, delta="Let me"),
    with_type("response.output_text.delta", output_index=1, content_index=0, delta=" look."),
    with_type("response.output_item.added", output_index=2, item={**CALL_ITEM, "arguments": ""}),
    with_type("response.function_call_arguments.delta", output_index=2, delta='{"city": '),
    with_type("response.function_call_arguments.delta", output_index=2, delta='"Oslo"}'),
]
RESPONSE_END = with_type("response.completed", response=RESPONSE)


def test_a_stream_of_a_response_is_its_last_event() -> None:
    call = view("responses", {"input": "x"}, events=[*RESPONSE_EVENTS, RESPONSE_END], streamed=True)
    assert call.response == RESPONSE
    assert [(c.message, c.finish_reason) for c in call.choices] == [(ANSWER, "tool_calls")]
    bare = with_type("response.completed", response={**RESPONSE, "output": []})
    call = view("responses", {"input": "x"}, events=[*RESPONSE_EVENTS, bare], streamed=True)
    assert [(c.message, c.finish_reason) for c in call.choices] == [(ANSWER, "tool_calls")]


def test_a_stream_of_a_response_that_was_cut_is_what_came_of_it() -> None:
    call = view("responses", {"input": "x"}, events=RESPONSE_EVENTS, outcome="closed_early")
    assert (call.response_id, call.problem) == ("resp_1", "cancelled")
    assert [(c.message, c.finish_reason) for c in call.choices] == [(ANSWER, None)]
    call = view("responses", {"input": "x"}, events=RESPONSE_EVENTS[:8], outcome="closed_early")
    assert call.choices[0].message["content"] == "Let me"


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "It asks for rain.", "signature": "s"},
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "cache_read_input_tokens": 6, "output_tokens": 4},
}


@pytest.mark.parametrize(
    ("stop", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause_turn"),
        (None, None),
    ],
)
def test_a_message_of_anthropic(stop: str | None, finish_reason: str | None) -> None:
    request = {"model": "claude", "max_tokens": 9, "stop_sequences": ["x"], "messages": []}
    call = view("messages", request, {**MESSAGE, "stop_reason": stop})
    assert (call.response_id, call.model, call.problem) == ("msg_1", "claude", "no_token_ids")
    assert call.usage is not None
    assert (call.usage["prompt_tokens"], call.usage["completion_tokens"]) == (9, 4)
    assert call.sampling["requested"] == {"max_tokens": 9, "stop_sequences": ["x"]}
    assert [(c.message, c.finish_reason) for c in call.choices] == [(ANSWER, finish_reason)]


def test_a_request_to_anthropic_is_the_chat_that_it_means() -> None:
    request = {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "Is it raining?"},
            {"role": "assistant", "content": MESSAGE["content"]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_1",
                        "content": [{"type": "text", "text": "yes"}],
                    },
                    {"type": "text", "text": "And now?"},
                ],
            },
            {"role": "assistant", "content": "Now"},
        ],
        "tools": [
            {"name": "weather", "description": "d", "input_schema": {"type": "object"}},
            {"type": "bash_20250124", "name": "bash"},
        ],
        "tool_choice": {"type": "any"},
    }
    assert observation("messages", request) == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Is it raining?"},
            ANSWER,
            {"role": "tool", "tool_call_id": "call_1", "content": "yes"},
            {"role": "user", "content": "And now?"},
            {"role": "assistant", "content": "Now"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}},
            },
            {"type": "bash_20250124", "name": "bash"},
        ],
        "tool_choice": "required",
    }


MESSAGE_EVENTS = [
    with_type(
        "message_start", message={**MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 3}}
    ),
    with_type(
        "content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": ""}
    ),
    with_type("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "It asks"}),
    with_type("ping"),
    with_type("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": " for rain."}),
    with_type("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "s"}),
    with_type("content_block_start", index=1, content_block={"type": "redacted_thinking", "data": "xx"}),
    with_type("content_block_start", index=2, content_block={"type": "text", "text": ""}),
    with_type("content_block_delta", index=2, delta={"type": "text_delta", "text": "Let me"}),
    with_type("content_block_delta", index=2, delta={"type": "text_delta", "text": " look."}),
    with_type(
        "content_block_start",
        index=3,
        content_block={"type": "tool_use", "id": "call_1", "name": "weather", "input": {}},
    ),
    with_type("content_block_delta", index=3, delta={"type": "input_json_delta", "partial_json": '{"city":'}),
    with_type("content_block_delta", index=3, delta={"type": "input_json_delta", "partial_json": ' "Oslo"}'}),
    with_type("content_block_stop", index=3),
    with_type(
        "message_delta",
        delta={"stop_reason": "tool_use", "stop_sequence": None},
        usage={"output_tokens": 4, "cache_read_input_tokens": 6, "input_tokens": None},
    ),
    with_type("message_stop"),
]


def test_a_stream_of_a_message_is_put_together() -> None:
    call = view("messages", {"messages": []}, events=MESSAGE_EVENTS)
    assert call.response == MESSAGE
    call = view("messages", {"messages": []}, events=MESSAGE_EVENTS[:-4], outcome="abandoned")
    assert (call.choices[0].finish_reason, call.problem) == (None, "cancelled")
    arguments = call.choices[0].message["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == '{"city":'


def test_the_id_of_a_stream_is_in_its_first_event() -> None:
    for events, found in ((RESPONSE_EVENTS, "resp_1"), (MESSAGE_EVENTS, "msg_1")):
        assert response_id(Call(streamed=True, events=[to_json(event) for event in events])) == found
    deeper = {"type": "response.output_item.added", "response": {"id": "no"}, "item": {"id": "no"}}
    assert response_id(Call(streamed=True, events=[to_json(deeper)])) is None


def test_a_transition_observes_in_the_form_of_a_chat() -> None:
    tape = Tape()
    tape.call("ca_1", RESPONSE, request={"model": "tiny", "input": "Is it raining?"}, api="responses")
    tape.call("ca_2", COMPLETION, request={"model": "tiny", "prompt": "2 + 2 ="}, api="completions")
    tape.call("ca_3", {"x": 1}, request={"messages": "hostile", "tools": 1}, api="messages")
    (episode,) = assemble(tape.records)
    seen = [{k: v for k, v in t.observation.items() if v is not None} for t in episode.transitions]
    assert seen == [
        {"messages": [{"role": "user", "content": "Is it raining?"}]},
        {"prompt": "2 + 2 ="},
        {"messages": "hostile", "tools": 1},
    ]
    assert [t.drop_reason for t in episode.transitions] == ["no_token_ids", None, "unreadable"]
