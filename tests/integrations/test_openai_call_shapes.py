"""What the OpenAI integration records of each shape of call, and that the agent sees the same as without it.

1. Values, types, chunks and exceptions are those of an unpatched run.
2. The recorded request is what the server received; the recorded response or events are what it sent.
3. Each call is recorded once, finished once, and nothing is reported after its end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pydantic
import pytest

from lightning_integrations.openai import OpenAIIntegration
from support.fake_openai import FakeOpenAI, Reply, ToolCall
from support.memory_recorder import MemoryRecorder

MESSAGES: list[Any] = [{"role": "user", "content": "Is it raining?"}]
ASK: dict[str, Any] = {"model": "fake", "messages": MESSAGES}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
VLLM = {"return_token_ids": True, "top_k": 5, "chat_template_kwargs": {"enable_thinking": False}}


class Weather(pydantic.BaseModel):
    raining: bool


def seen(value: Any) -> Any:
    """What an agent can see of a value: its type's name and its contents."""
    if isinstance(value, list):
        return [seen(item) for item in value]
    contents = value.model_dump() if isinstance(value, pydantic.BaseModel) else value
    return type(value).__module__, type(value).__qualname__, contents


# Synchronous shapes.


def create(client: openai.OpenAI) -> Any:
    return seen(client.chat.completions.create(**ASK))


def create_with_everything(client: openai.OpenAI) -> Any:
    return seen(
        client.chat.completions.create(
            **ASK,
            tools=TOOLS,
            n=2,
            logprobs=True,
            temperature=0.5,
            seed=openai.NOT_GIVEN,
            stream=False,
            extra_body=VLLM,
            extra_headers={"x-mine": "1"},
        )
    )


def create_with_messages_from_a_generator(client: openai.OpenAI) -> Any:
    return seen(client.chat.completions.create(model="fake", messages=(message for message in MESSAGES)))  # type: ignore[arg-type]


def create_with_stream_omitted(client: openai.OpenAI) -> Any:
    return seen(client.chat.completions.create(**ASK, stream=openai.NOT_GIVEN))  # type: ignore[call-overload]


def with_options(client: openai.OpenAI) -> Any:
    return seen(client.with_options(timeout=20).chat.completions.create(**ASK))


def raw_response(client: openai.OpenAI) -> Any:
    raw = client.chat.completions.with_raw_response.create(**ASK)
    return type(raw).__qualname__, raw.status_code, raw.headers["x-request-id"], raw.text, seen(raw.parse())


def streaming_response_parsed(client: openai.OpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(**ASK) as response:
        return type(response).__qualname__, response.status_code, seen(response.parse())


def streaming_response_read(client: openai.OpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(**ASK) as response:
        return response.read(), response.json(), list(response.iter_bytes())


def streaming_response_by_lines(client: openai.OpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(**ASK) as response:
        return list(response.iter_lines())


def parse(client: openai.OpenAI) -> Any:
    answer = client.chat.completions.parse(**ASK, response_format=Weather)
    return (
        type(answer).__qualname__,
        seen(answer.choices[0].message.parsed),
        answer.choices[0].message.content,
    )


def plain_post(client: openai.OpenAI) -> Any:
    return client.post("/chat/completions", cast_to=object, body=ASK)


# Synchronous streams.


def stream(client: openai.OpenAI) -> Any:
    chunks = client.chat.completions.create(**ASK, stream=True)
    assert isinstance(chunks, openai.Stream)
    shown = type(chunks).__module__, type(chunks).__qualname__, chunks.response.status_code
    return shown, [seen(chunk) for chunk in chunks], chunks.response.is_closed


def stream_with_everything(client: openai.OpenAI) -> Any:
    chunks = client.chat.completions.create(
        **ASK,
        tools=TOOLS,
        n=2,
        logprobs=True,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=VLLM,
    )
    return [seen(chunk) for chunk in chunks]


def stream_in_a_context(client: openai.OpenAI) -> Any:
    with client.chat.completions.create(**ASK, stream=True) as chunks:
        assert isinstance(chunks, openai.Stream)
        return [seen(chunk) for chunk in chunks]


def stream_by_next(client: openai.OpenAI) -> Any:
    chunks = client.chat.completions.create(**ASK, stream=True)
    found = []
    while (chunk := next(chunks, None)) is not None:
        found.append(seen(chunk))
    return found


def stream_of_raw_response(client: openai.OpenAI) -> Any:
    raw = client.chat.completions.with_raw_response.create(**ASK, stream=True)
    chunks = raw.parse()
    assert isinstance(chunks, openai.Stream)
    return type(raw).__qualname__, type(chunks).__qualname__, [seen(chunk) for chunk in chunks]


def stream_of_streaming_response(client: openai.OpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        return [seen(chunk) for chunk in response.parse()]


def stream_of_streaming_response_by_lines(client: openai.OpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        return list(response.iter_lines())


def stream_left_at_done(client: openai.OpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        return next(line for line in response.iter_lines() if line == "data: [DONE]")


def stream_of_an_own_class(client: openai.OpenAI) -> Any:
    class MyStream(openai.Stream[object]):
        pass

    chunks = client.post(
        "/chat/completions", cast_to=object, body={**ASK, "stream": True}, stream=True, stream_cls=MyStream
    )
    assert isinstance(chunks, MyStream)
    return type(chunks).__qualname__, list(chunks)


def stream_of_the_clients_class(client: openai.OpenAI) -> Any:
    chunks: Any = client.post("/chat/completions", cast_to=object, body={**ASK, "stream": True}, stream=True)
    return type(chunks), list(chunks)


def stream_helper(client: openai.OpenAI) -> Any:
    with client.chat.completions.stream(**ASK, response_format=Weather) as events:
        kinds = [event.type for event in events]
        return kinds, seen(events.get_final_completion().choices[0].message.parsed)


# Asynchronous shapes.


async def create_async(client: openai.AsyncOpenAI) -> Any:
    return seen(await client.chat.completions.create(**ASK))


async def create_two_at_once(client: openai.AsyncOpenAI) -> Any:
    return seen(await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(2))))


async def raw_response_async(client: openai.AsyncOpenAI) -> Any:
    raw = await client.chat.completions.with_raw_response.create(**ASK)
    return type(raw).__qualname__, raw.text, seen(raw.parse())


async def streaming_response_async(client: openai.AsyncOpenAI) -> Any:
    async with client.chat.completions.with_streaming_response.create(**ASK) as response:
        return type(response).__qualname__, seen(await response.parse())


async def parse_async(client: openai.AsyncOpenAI) -> Any:
    answer = await client.chat.completions.parse(**ASK, response_format=Weather)
    return seen(answer.choices[0].message.parsed)


async def stream_async(client: openai.AsyncOpenAI) -> Any:
    chunks = await client.chat.completions.create(**ASK, stream=True)
    assert isinstance(chunks, openai.AsyncStream)
    shown = type(chunks).__module__, type(chunks).__qualname__, chunks.response.status_code
    return shown, [seen(chunk) async for chunk in chunks], chunks.response.is_closed


async def stream_in_a_context_async(client: openai.AsyncOpenAI) -> Any:
    async with await client.chat.completions.create(**ASK, stream=True) as chunks:
        return [seen(chunk) async for chunk in chunks]


async def stream_of_raw_response_async(client: openai.AsyncOpenAI) -> Any:
    raw = await client.chat.completions.with_raw_response.create(**ASK, stream=True)
    return [seen(chunk) async for chunk in raw.parse()]


async def stream_of_streaming_response_async(client: openai.AsyncOpenAI) -> Any:
    async with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        return [seen(chunk) async for chunk in await response.parse()]


async def stream_of_streaming_response_by_lines_async(client: openai.AsyncOpenAI) -> Any:
    async with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        return [line async for line in response.iter_lines()]


async def stream_helper_async(client: openai.AsyncOpenAI) -> Any:
    async with client.chat.completions.stream(**ASK) as events:
        kinds = [event.type async for event in events]
        return kinds, seen(await events.get_final_completion())


WORDS = Reply("It may rain")
TOOL_CALL = Reply(None, tool_calls=[ToolCall("weather", '{"city": "Oslo"}')])
JSON_REPLY = Reply('{"raining": true}')

# Shape, what the server answers, whether a stream is asked for.
SHAPES: Sequence[tuple[Callable[[Any], Any], Reply, bool]] = [
    (create, WORDS, False),
    (create_with_everything, TOOL_CALL, False),
    (create_with_messages_from_a_generator, WORDS, False),
    (create_with_stream_omitted, WORDS, False),
    (with_options, WORDS, False),
    (raw_response, WORDS, False),
    (streaming_response_parsed, WORDS, False),
    (streaming_response_read, WORDS, False),
    (streaming_response_by_lines, WORDS, False),
    (parse, JSON_REPLY, False),
    (plain_post, WORDS, False),
    (stream, WORDS, True),
    (stream_with_everything, TOOL_CALL, True),
    (stream_in_a_context, WORDS, True),
    (stream_by_next, WORDS, True),
    (stream_of_raw_response, WORDS, True),
    (stream_of_streaming_response, WORDS, True),
    (stream_of_streaming_response_by_lines, WORDS, True),
    (stream_left_at_done, WORDS, True),
    (stream_of_an_own_class, WORDS, True),
    (stream_of_the_clients_class, WORDS, True),
    (stream_helper, JSON_REPLY, True),
    (create_async, WORDS, False),
    (create_two_at_once, WORDS, False),
    (raw_response_async, WORDS, False),
    (streaming_response_async, WORDS, False),
    (parse_async, JSON_REPLY, False),
    (stream_async, TOOL_CALL, True),
    (stream_in_a_context_async, WORDS, True),
    (stream_of_raw_response_async, WORDS, True),
    (stream_of_streaming_response_async, WORDS, True),
    (stream_of_streaming_response_by_lines_async, WORDS, True),
    (stream_helper_async, WORDS, True),
]


def run(shape: Callable[[Any], Any], server: FakeOpenAI) -> Any:
    """What the agent sees of one call."""
    if not asyncio.iscoroutinefunction(shape):
        with openai.OpenAI(base_url=server.base_url, api_key="test", max_retries=0) as client:
            return shape(client)

    async def with_client() -> Any:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="test", max_retries=0) as client:
            return await shape(client)

    return asyncio.run(with_client())


@pytest.mark.parametrize(
    ("shape", "reply", "streamed"), SHAPES, ids=[shape.__name__ for shape, _, _ in SHAPES]
)
def test_a_call_is_recorded_as_it_was_on_the_wire_and_looks_the_same_to_the_agent(
    shape: Callable[[Any], Any], reply: Reply, streamed: bool
) -> None:
    memory = MemoryRecorder()
    with FakeOpenAI(lambda request: reply) as server:
        unpatched = run(shape, server)
        alone = len(server.exchanges)
        undo = OpenAIIntegration().install(memory)
        patched = run(shape, server)
        undo()

        assert patched == unpatched
        exchanges = server.exchanges[alone:]
        assert [exchange.request for exchange in exchanges] == [
            exchange.request for exchange in server.exchanges[:alone]
        ]
        assert len(memory.calls) == len(exchanges)
        for call, exchange in zip(memory.calls, exchanges, strict=True):
            assert call.integration == "openai"
            assert call.api == "chat.completions"
            assert call.url == f"{server.base_url}/chat/completions"
            assert call.streamed is streamed
            assert call.bodies == [exchange.request]
            assert call.status == 200
            assert call.response_headers["x-request-id"] == "req_fake"
            assert call.response == (None if streamed else exchange.response)
            assert call.events == exchange.events
            assert (call.outcome, call.error) == ("ok", None)
            assert not call.late


def test_nothing_of_ours_stays_on_a_response_that_has_ended(recorder: MemoryRecorder) -> None:
    with FakeOpenAI() as server, openai.OpenAI(base_url=server.base_url, api_key="test") as client:
        chunks = client.chat.completions.create(**ASK, stream=True)
        list(chunks)
        with client.chat.completions.with_streaming_response.create(**ASK) as raw:
            raw.read()

    for response in (chunks.response, raw.http_response):
        assert not {"close", "iter_bytes", "_lightning_open"} & set(vars(response))
    assert [call.outcome for call in recorder.calls] == ["ok", "ok"]


def test_the_class_of_a_stream_is_made_once(recorder: MemoryRecorder) -> None:
    with FakeOpenAI() as server, openai.OpenAI(base_url=server.base_url, api_key="test") as client:
        streams = [client.chat.completions.create(**ASK, stream=True) for _ in range(2)]
        for chunks in streams:
            chunks.close()

    assert type(streams[0]) is type(streams[1])


def test_the_arguments_of_the_agent_stay_as_they_are(recorder: MemoryRecorder) -> None:
    arguments: dict[str, Any] = {
        **ASK,
        "messages": [dict(message) for message in MESSAGES],
        "tools": TOOLS,
        "extra_headers": {"x-mine": "1"},
        "extra_body": dict(VLLM),
    }
    before = json.dumps(arguments)
    with FakeOpenAI() as server, openai.OpenAI(base_url=server.base_url, api_key="test") as client:
        client.chat.completions.create(**arguments)
        list(client.chat.completions.create(**arguments, stream=True))

    assert json.dumps(arguments) == before


def test_only_the_headers_that_the_recording_names_are_added_to_the_request() -> None:
    with FakeOpenAI() as server, openai.OpenAI(base_url=server.base_url, api_key="test") as client:
        client.chat.completions.create(**ASK)
        for headers in ({}, {"x-lightning-call-id": "ca_1"}):
            undo = OpenAIIntegration().install(MemoryRecorder(headers=headers))
            client.chat.completions.create(**ASK)
            undo()

    plain, without, with_id = (exchange.headers for exchange in server.exchanges)
    assert without == plain
    assert with_id == {**plain, "x-lightning-call-id": "ca_1"}


def test_the_url_of_an_azure_call_is_the_one_that_was_requested(recorder: MemoryRecorder) -> None:
    with (
        FakeOpenAI() as server,
        openai.AzureOpenAI(azure_endpoint=server.origin, api_key="test", api_version="2024-06-01") as client,
    ):
        client.chat.completions.create(**ASK)

    path = "/openai/deployments/fake/chat/completions?api-version=2024-06-01"
    assert server.exchanges[0].path == path
    assert recorder.call.url == server.origin + path
    assert recorder.call.outcome == "ok"


def test_other_requests_are_not_calls(recorder: MemoryRecorder) -> None:
    with FakeOpenAI() as server, openai.OpenAI(base_url=server.base_url, api_key="test") as client:
        client.chat.completions.list()
        with pytest.raises(openai.NotFoundError):
            client.moderations.create(input="words")

    assert [exchange.method for exchange in server.exchanges] == ["GET"]
    assert recorder.calls == []


def test_a_request_made_inside_a_call_is_not_taken_for_an_attempt_of_it(recorder: MemoryRecorder) -> None:
    with FakeOpenAI() as server, openai.OpenAI(base_url=server.base_url, api_key="test") as inner:

        def fetch_key() -> str:
            inner.embeddings.create(model="fake", input="words", encoding_format="float")
            return "test"

        with openai.OpenAI(base_url=server.base_url, api_key=fetch_key) as client:
            client.chat.completions.create(**ASK)

    assert [exchange.path for exchange in server.exchanges] == ["/v1/embeddings", "/v1/chat/completions"]
    assert [call.api for call in recorder.calls] == ["embeddings", "chat.completions"]
    for call, exchange in zip(recorder.calls, server.exchanges, strict=True):
        assert call.bodies == [exchange.request]
        assert call.response == exchange.response


def test_outside_a_rollout_a_call_passes_through() -> None:
    memory = MemoryRecorder(recording=False)
    with FakeOpenAI() as server, openai.OpenAI(base_url=server.base_url, api_key="test") as client:
        undo = OpenAIIntegration().install(memory)
        chunks = client.chat.completions.create(**ASK, stream=True)
        assert type(chunks) is openai.Stream
        assert len(list(chunks)) == len(server.exchanges[0].events) - 1
        assert client.chat.completions.create(**ASK).choices[0].message.content == "Hello there"
        undo()

    assert memory.calls == []
