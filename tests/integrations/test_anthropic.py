"""Messages of the Anthropic SDK: recorded as on the wire, told as calls, and routed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import lightning_sdk as ls
from lightning_integrations.anthropic import AnthropicIntegration
from lightning_sdk.errors import RoutingError
from lightning_sdk.plugins import INTEGRATIONS, Integration, find
from lightning_sdk.testing import capture
from support.fake_openai import FakeOpenAI, Reply
from support.memory_recorder import MemoryRecorder

anthropic = pytest.importorskip("anthropic")

SECRET = "users-own-secret"
ASK: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Is it raining?"}],
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "It may rain"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It may"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " rain"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 2},
    },
    {"type": "message_stop"},
]


def answer(request: Any) -> Reply:
    if request.get("stream") is True:
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in EVENTS)
        return Reply(body=text.encode())
    return Reply(body=json.dumps(MESSAGE).encode())


def create(client: Any) -> Any:
    return client.messages.create(**ASK, extra_headers={"x-mine": SECRET}, extra_query={"q": SECRET}).content


def beta(client: Any) -> Any:
    return client.beta.messages.create(**ASK, betas=["some-beta"]).content


def raw(client: Any) -> Any:
    return client.messages.with_raw_response.create(**ASK).parse().content


def stream(client: Any) -> Any:
    return [event.model_dump() for event in client.messages.create(**ASK, stream=True)]


def stream_helper(client: Any) -> Any:
    with client.messages.stream(**ASK) as events:
        return "".join(events.text_stream), events.get_final_message().stop_reason


def stream_read_as_lines(client: Any) -> Any:
    with client.messages.with_streaming_response.create(**ASK, stream=True) as response:
        return list(response.iter_lines())


async def create_async(client: Any) -> Any:
    return (await client.messages.create(**ASK)).content


async def stream_async(client: Any) -> Any:
    async with client.messages.stream(**ASK) as events:
        return [text async for text in events.text_stream]


SHAPES: list[Callable[[Any], Any]] = [
    create,
    beta,
    raw,
    stream,
    stream_helper,
    stream_read_as_lines,
    create_async,
    stream_async,
]


def run(shape: Callable[[Any], Any], origin: str) -> Any:
    if not asyncio.iscoroutinefunction(shape):
        with anthropic.Anthropic(
            base_url=origin, api_key=SECRET, default_headers={"x-own": SECRET}
        ) as client:
            return shape(client)

    async def with_client() -> Any:
        async with anthropic.AsyncAnthropic(base_url=origin, auth_token=SECRET) as client:
            return await shape(client)

    return asyncio.run(with_client())


def test_it_is_found_by_its_entry_point() -> None:
    assert isinstance(find(INTEGRATIONS, "anthropic").load()(), Integration)


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.__name__ for shape in SHAPES])
def test_a_call_is_recorded_as_it_was_on_the_wire_and_looks_the_same_to_the_agent(
    shape: Callable[[Any], Any],
) -> None:
    memory = MemoryRecorder()
    with FakeOpenAI(answer) as server:
        unpatched = run(shape, server.origin)
        undo = AnthropicIntegration().install(memory)
        patched = run(shape, server.origin)
        undo()

    assert patched == unpatched
    call, exchange = memory.call, server.exchanges[1]
    assert (call.integration, call.api, call.bodies) == ("anthropic", "messages", [exchange.request])
    assert (call.outcome, call.status, call.late) == ("ok", 200, [])
    if call.streamed:
        assert [json.loads(data) for data in call.events] == EVENTS
    else:
        assert call.response == exchange.response


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.__name__ for shape in SHAPES])
def test_a_routed_one_reaches_the_endpoint_and_is_understood(shape: Callable[[Any], Any]) -> None:
    with FakeOpenAI(answer) as provider, FakeOpenAI(answer) as endpoint:
        ls.init(policy_endpoint=endpoint.base_url, policy_token="token", agents={"writer": "small"})
        with capture() as cap:
            ls.trace_agent(name="writer")(run)(shape, provider.origin)
        ls.shutdown()

    (exchange,), (call,) = endpoint.exchanges, cap.calls
    assert provider.exchanges == []
    assert exchange.path == "/v1/messages"
    assert SECRET not in repr(exchange)
    assert {
        name: value
        for name, value in exchange.headers.items()
        if name.lower() not in ("host", "content-length")
    } == {
        "content-type": "application/json",
        "accept": "text/event-stream" if call.streamed else "application/json",
        "user-agent": "lightning_sdk (anthropic)",
        "authorization": "Bearer token",
        "x-lightning-call-id": call.call_id,
        "x-lightning-policy": "small",
        "x-lightning-rollout": call.rollout_id,
        "x-lightning-agent": "writer",
    }
    assert [(c.message, c.finish_reason) for c in call.choices] == [
        ({"role": "assistant", "content": "It may rain"}, "stop")
    ]
    (episode,) = cap.episodes()
    assert episode.transitions[0].observation["messages"] == ASK["messages"]


def test_what_the_endpoint_does_not_answer_is_refused() -> None:
    with FakeOpenAI(answer) as provider, FakeOpenAI(answer) as endpoint:
        ls.init(policy_endpoint=endpoint.base_url, agents="*")

        @ls.trace_agent
        def count() -> None:
            with anthropic.Anthropic(base_url=provider.origin, api_key=SECRET) as client:
                client.messages.count_tokens(model="claude", messages=ASK["messages"])

        with pytest.raises(RoutingError, match="v1/messages/count_tokens"):
            count()
        ls.shutdown()
    assert provider.exchanges == endpoint.exchanges == []


def test_a_client_that_writes_a_shape_of_its_own_is_refused() -> None:
    class Bedrockish(anthropic.Anthropic):  # type: ignore[misc,name-defined]
        def _build_request(self, options: Any, **kwargs: Any) -> Any:
            options.url = "/model/claude/invoke"
            return super()._build_request(options, **kwargs)

    with FakeOpenAI(answer) as provider, FakeOpenAI(answer) as endpoint:
        ls.init(policy_endpoint=endpoint.base_url, agents="*")
        with (
            capture() as cap,
            ls.rollout(),
            Bedrockish(base_url=provider.origin, api_key=SECRET) as client,
            pytest.raises(RoutingError, match="Bedrockish writes it in a shape of its own"),
        ):
            client.messages.create(**ASK)
        ls.shutdown()
    assert provider.exchanges == endpoint.exchanges == []
    assert [(call.api, call.outcome) for call in cap.calls] == [("messages", "error")]
