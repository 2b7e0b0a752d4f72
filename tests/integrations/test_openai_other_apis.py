"""Responses, completions and embeddings of the OpenAI SDK: recorded as on the wire, told as calls, and routed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest

import lightning_sdk as ls
from lightning_integrations.openai import OpenAIIntegration
from lightning_sdk.testing import capture
from support.fake_openai import FakeOpenAI, Reply
from support.memory_recorder import MemoryRecorder

TEXT = '{"raining": true}'


def response_body(status: str = "completed", text: str = TEXT) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": "m_1", "role": "assistant", "status": status, "content": [part]}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "fake",
        "status": status,
        "output": [message] if text else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 4, "output_tokens": 2, "total_tokens": 6},
    }


def sse(events: list[dict[str, Any]], end: str = "") -> bytes:
    return ("".join(f"event: {e.get('type')}\ndata: {json.dumps(e)}\n\n" for e in events) + end).encode()


RESPONSE_EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": response_body("in_progress", "")},
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"type": "message", "id": "m_1", "role": "assistant", "status": "in_progress", "content": []},
    },
    {
        "type": "response.content_part.added",
        "output_index": 0,
        "content_index": 0,
        "item_id": "m_1",
        "part": {"type": "output_text", "text": "", "annotations": []},
    },
    {
        "type": "response.output_text.delta",
        "output_index": 0,
        "content_index": 0,
        "item_id": "m_1",
        "delta": TEXT,
    },
    {"type": "response.completed", "response": response_body()},
]


def completion_body(text: str = TEXT, finish_reason: str | None = "stop") -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "fake", "choices": [choice]}


def answer(request: Any) -> Reply:
    streamed = request.get("stream") is True
    if "prompt" in request:
        chunks = [completion_body(TEXT[:5], None), completion_body(TEXT[5:])]
        return Reply(
            body=sse(chunks, "data: [DONE]\n\n") if streamed else json.dumps(completion_body()).encode()
        )
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(RESPONSE_EVENTS)]
    return Reply(body=sse(numbered) if streamed else json.dumps(response_body()).encode())


class Weather(pydantic.BaseModel):
    raining: bool


ASK: dict[str, Any] = {"model": "fake", "input": "Is it raining?"}
PROMPT: dict[str, Any] = {"model": "fake", "prompt": [1, 2, 3]}


def create(client: openai.OpenAI) -> Any:
    return client.responses.create(**ASK).output_text


def parse(client: openai.OpenAI) -> Any:
    return client.responses.parse(**ASK, text_format=Weather).output_parsed


def raw(client: openai.OpenAI) -> Any:
    return client.responses.with_raw_response.create(**ASK).text


def stream(client: openai.OpenAI) -> Any:
    return [event.model_dump() for event in client.responses.create(**ASK, stream=True)]


def stream_helper(client: openai.OpenAI) -> Any:
    with client.responses.stream(**ASK, text_format=Weather) as events:
        kinds = [event.type for event in events]
        return kinds, events.get_final_response().output_text


def streaming_response(client: openai.OpenAI) -> Any:
    with client.responses.with_streaming_response.create(**ASK, stream=True) as response:
        return list(response.iter_lines())


def complete(client: openai.OpenAI) -> Any:
    return client.completions.create(**PROMPT).choices[0].text


def complete_text(client: openai.OpenAI) -> Any:
    return client.completions.create(model="fake", prompt="2 + 2 =").choices[0].text


def complete_stream(client: openai.OpenAI) -> Any:
    return [chunk.choices[0].text for chunk in client.completions.create(**PROMPT, stream=True)]


async def create_async(client: openai.AsyncOpenAI) -> Any:
    return (await client.responses.create(**ASK)).output_text


async def stream_async(client: openai.AsyncOpenAI) -> Any:
    async with client.responses.stream(**ASK) as events:
        return [event.type async for event in events]


async def complete_async(client: openai.AsyncOpenAI) -> Any:
    return [chunk.choices[0].text async for chunk in await client.completions.create(**PROMPT, stream=True)]


SHAPES: list[Callable[[Any], Any]] = [
    create,
    parse,
    raw,
    stream,
    stream_helper,
    streaming_response,
    complete,
    complete_text,
    complete_stream,
    create_async,
    stream_async,
    complete_async,
]


def run(shape: Callable[[Any], Any], base_url: str) -> Any:
    if not asyncio.iscoroutinefunction(shape):
        with openai.OpenAI(base_url=base_url, api_key="users-own") as client:
            return shape(client)

    async def with_client() -> Any:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="users-own") as client:
            return await shape(client)

    return asyncio.run(with_client())


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.__name__ for shape in SHAPES])
def test_a_call_is_recorded_as_it_was_on_the_wire_and_looks_the_same_to_the_agent(
    shape: Callable[[Any], Any],
) -> None:
    memory = MemoryRecorder()
    with FakeOpenAI(answer) as server:
        unpatched = run(shape, server.base_url)
        undo = OpenAIIntegration().install(memory)
        patched = run(shape, server.base_url)
        undo()

    assert patched == unpatched
    call, exchange = memory.call, server.exchanges[1]
    path = "completions" if "complete" in shape.__name__ else "responses"
    assert (call.api, call.url, call.bodies) == (path, f"{server.base_url}/{path}", [exchange.request])
    assert (call.outcome, call.status, call.late) == ("ok", 200, [])
    if call.streamed:
        data = [
            line.removeprefix("data: ") for line in exchange.response.decode().split("\n") if "data: " in line
        ]
        assert call.events == data
    else:
        assert call.response == exchange.response


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.__name__ for shape in SHAPES])
def test_a_routed_one_reaches_the_endpoint_and_is_understood(shape: Callable[[Any], Any]) -> None:
    with FakeOpenAI(answer) as provider, FakeOpenAI(answer) as endpoint:
        ls.init(policy_endpoint=endpoint.base_url, policy_token="token", agents={"writer": "small"})
        with capture() as cap:
            ls.trace_agent(name="writer")(run)(shape, provider.base_url)
        ls.shutdown()

    (exchange,), (call,) = endpoint.exchanges, cap.calls
    assert provider.exchanges == []
    assert exchange.path == f"/v1/{call.api}"
    assert "users-own" not in repr(exchange)
    assert {name for name in exchange.headers if name.lower() not in ("host", "content-length")} == {
        "content-type",
        "accept",
        "user-agent",
        "authorization",
        "x-lightning-call-id",
        "x-lightning-policy",
        "x-lightning-rollout",
        "x-lightning-agent",
    }
    assert [(c.message["content"], c.finish_reason) for c in call.choices] == [(TEXT, "stop")]
    assert call.response_id == ("cmpl-1" if call.api == "completions" else "resp_1")
    (episode,) = cap.episodes()
    assert episode.transitions[0].observation["messages" if call.api == "responses" else "prompt"]


def test_embeddings_are_recorded_and_are_no_transition() -> None:
    with (
        FakeOpenAI() as server,
        openai.OpenAI(base_url=server.base_url, api_key="test") as client,
        capture() as cap,
        ls.rollout(),
    ):
        client.embeddings.create(model="fake", input="words", encoding_format="float")

    (call,) = cap.calls
    assert (call.api, call.outcome, call.problem) == ("embeddings", "ok", None)
    assert call.request_bytes == server.exchanges[0].request
    (episode,) = cap.episodes()
    assert (len(episode.transitions), dict(episode.calls_without_transition)) == (0, {"embedding": 1})
