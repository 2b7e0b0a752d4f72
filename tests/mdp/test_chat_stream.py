"""A stream becomes the body that the API would have answered without streaming.

1. Deltas merge by choice index, tool calls by their own index; text in pieces is concatenated.
2. The finish reason is each choice's own, usage comes from the last chunk that tells it.
3. Log probabilities and token ids are concatenated; unknown fields are kept.
4. What is no chunk is refused, never guessed at.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis.chat_stream import join_events


def chunk(delta: dict[str, Any] | None = None, index: int = 0, **choice: Any) -> bytes:
    return event(choices=[{"index": index, "delta": delta or {}, "finish_reason": None, **choice}])


def event(**fields: Any) -> bytes:
    return json.dumps({"id": "c1", "object": "chat.completion.chunk", "model": "m", **fields}).encode()


def test_text_is_concatenated_and_the_end_mark_is_no_chunk() -> None:
    body = join_events(
        [
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo"}),
            chunk({}, finish_reason="stop"),
            event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2}),
            b"[DONE]",
        ]
    )
    assert body == {
        "id": "c1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }


def test_choices_come_interleaved_and_each_keeps_its_own() -> None:
    body = join_events(
        [
            chunk({"role": "assistant", "content": "b"}, index=1),
            chunk({"role": "assistant", "content": "a"}, index=0),
            chunk({"content": "B"}, index=1, finish_reason="length"),
            chunk({"content": "A"}, index=0, finish_reason="stop"),
        ]
    )
    told = [(c["index"], c["message"]["content"], c["finish_reason"]) for c in body["choices"]]
    assert told == [(0, "aA", "stop"), (1, "bB", "length")]


def test_tool_calls_grow_by_their_index() -> None:
    def tool(index: int, **fields: Any) -> bytes:
        return chunk({"tool_calls": [{"index": index, **fields}]})

    body = join_events(
        [
            chunk({"role": "assistant", "content": None}),
            tool(0, id="call_a", type="function", function={"name": "search", "arguments": ""}),
            tool(1, id="call_b", type="function", function={"name": "add", "arguments": ""}),
            tool(0, function={"arguments": '{"q":'}),
            tool(1, function={"arguments": '{"x":1}'}),
            tool(0, id="call_a", function={"arguments": '"cat"}'}),
            chunk({}, finish_reason="tool_calls"),
        ]
    )
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "search", "arguments": '{"q":"cat"}'}},
            {"id": "call_b", "type": "function", "function": {"name": "add", "arguments": '{"x":1}'}},
        ],
    }


def test_refusal_reasoning_and_the_old_function_call_are_concatenated() -> None:
    body = join_events(
        [
            chunk({"role": "assistant", "refusal": "I ", "reasoning_content": "think "}),
            chunk({"refusal": "won't", "reasoning_content": "hard"}),
            chunk({"function_call": {"name": "f", "arguments": "{"}}),
            chunk({"function_call": {"arguments": "}"}}),
        ]
    )
    message = body["choices"][0]["message"]
    assert message["refusal"] == "I won't"
    assert message["reasoning_content"] == "think hard"
    assert message["function_call"] == {"name": "f", "arguments": "{}"}


def test_token_ids_and_log_probabilities_are_concatenated_wherever_they_are() -> None:
    def logprobs(*values: float) -> dict[str, Any]:
        return {"content": [{"token": "t", "logprob": value} for value in values], "refusal": None}

    body = join_events(
        [
            event(prompt_token_ids=[1, 2], choices=[{"index": 0, "delta": {"role": "assistant"}}]),
            chunk({"content": "a"}, token_ids=[3], logprobs=logprobs(-0.1)),
            chunk({"content": "bc", "token_ids": [4, 5]}, logprobs=logprobs(-0.2, -0.3)),
            chunk({}, token_ids=None, logprobs=None, finish_reason="stop", stop_reason=7),
        ]
    )
    choice = body["choices"][0]
    assert body["prompt_token_ids"] == [1, 2]
    assert choice["token_ids"] == [3, 4, 5]
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.1, -0.2, -0.3]
    assert choice["stop_reason"] == 7
    assert choice["message"] == {"role": "assistant", "content": "abc"}


def test_empty_chunks_and_unknown_fields_are_taken() -> None:
    body = join_events([b"", b" ", event(choices=[], new_field={"x": 1}), chunk(), event()])
    assert body["new_field"] == {"x": 1}
    assert body["choices"][0]["message"] == {"role": "assistant", "content": None}


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"7",
        b'{"choices": 7}',
        b'{"choices": [7]}',
        b'{"choices": [{"index": "x"}]}',
        b'{"choices": [{"delta": {"tool_calls": [null]}}]}',
        b'{"choices": [{"delta": {"tool_calls": {"index": 0}}}]}',
        b"\xff\xfe",
        b'{"x": NaN}',
    ],
)
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        join_events([data])


text = st.text(max_size=12)
tool_calls = st.fixed_dictionaries(
    {
        "id": st.text(min_size=1, max_size=5),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.text(min_size=1, max_size=5), "arguments": text}),
    }
)
messages = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": text},
    optional={
        "refusal": text,
        "reasoning_content": text,
        "tool_calls": st.lists(tool_calls, min_size=1, max_size=3),
    },
)
completions = st.builds(
    lambda each: {
        "id": "c1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": at,
                "finish_reason": reason,
                "message": message,
                "token_ids": ids,
                "logprobs": {"content": [{"token": "t", "logprob": -float(i)} for i in ids]},
            }
            for at, (message, reason, ids) in enumerate(each)
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": sum(len(ids) for _, _, ids in each)},
    },
    st.lists(
        st.tuples(messages, st.sampled_from(["stop", "length"]), st.lists(st.integers(0, 9), max_size=4)),
        min_size=1,
        max_size=3,
    ),
)


def streamed(body: dict[str, Any], draw: st.DataObject) -> list[bytes]:
    """The body as a server would stream it: pieces of each choice, interleaved at random."""
    queues: list[list[bytes]] = []
    for choice in body["choices"]:
        index, message = choice["index"], choice["message"]
        deltas: list[dict[str, Any]] = [{"role": "assistant"}]
        for key in ("content", "refusal", "reasoning_content"):
            if key in message:
                cut = draw.draw(st.integers(0, len(message[key])))
                deltas += [{key: message[key][:cut]}, {key: message[key][cut:]}]
        for at, call in enumerate(message.get("tool_calls", ())):
            arguments = call["function"]["arguments"]
            cut = draw.draw(st.integers(0, len(arguments)))
            first = {**call, "function": {**call["function"], "arguments": arguments[:cut]}}
            deltas.append({"tool_calls": [{"index": at, **first}]})
            deltas.append({"tool_calls": [{"index": at, "function": {"arguments": arguments[cut:]}}]})
        queue = [chunk(delta, index=index) for delta in deltas]
        cut = draw.draw(st.integers(0, len(choice["token_ids"])))
        for part in (slice(0, cut), slice(cut, None)):
            logprobs = {"content": choice["logprobs"]["content"][part]}
            queue.append(chunk({}, index=index, token_ids=choice["token_ids"][part], logprobs=logprobs))
        queue.append(chunk({}, index=index, finish_reason=choice["finish_reason"]))
        queues.append(queue)
    events = []
    while any(queues):
        queue = draw.draw(st.sampled_from([queue for queue in queues if queue]))
        events.append(queue.pop(0))
    return [*events, event(choices=[], usage=body["usage"]), b"[DONE]"]


@settings(deadline=None, derandomize=True)
@given(body=completions, draw=st.data())
def test_any_stream_joins_to_the_body_it_came_from(body: dict[str, Any], draw: st.DataObject) -> None:
    assert join_events(streamed(body, draw)) == body


def test_a_stream_that_begins_with_an_empty_chunk_keeps_the_names_that_follow() -> None:
    first = {"id": "", "model": "", "choices": [], "prompt_filter_results": []}
    second = {"id": "c-1", "model": "tiny", "choices": [{"index": 0, "delta": {"content": "x"}}]}
    third = {"id": "c-2", "model": "other", "choices": []}
    body = join_events([json.dumps(each).encode() for each in (first, second, third)])
    assert (body["id"], body["model"]) == ("c-1", "tiny")
