"""How each end of an OpenAI call is recorded, and that the agent meets the same exception as without us.

1. A call that is not streamed ends ok, error or cancelled; its attempts are one record.
2. A stream ends ok at [DONE] or exhaustion, closed_early, abandoned, error or cancelled: once, in any thread.
3. What had arrived before the end is kept.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import openai
import pydantic
import pytest

from lightning_integrations.openai import OpenAIIntegration
from support.fake_openai import FakeOpenAI, Reply
from support.memory_recorder import MemoryRecorder

ASK: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "Is it raining?"}]}
NO_WAIT = {"retry-after-ms": "1"}


def client_of(server: FakeOpenAI, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(**{"base_url": server.base_url, "api_key": "test", "max_retries": 0, **options})


def async_client_of(server: FakeOpenAI, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**{"base_url": server.base_url, "api_key": "test", "max_retries": 0, **options})


# Errors.


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_status_is_an_error_with_its_body(is_async: bool, streamed: bool) -> None:
    def attempt(server: FakeOpenAI) -> openai.APIStatusError:
        async def asynchronously() -> None:
            async with async_client_of(server) as client:
                await client.chat.completions.create(**ASK, stream=streamed)

        def synchronously() -> None:
            with client_of(server) as client:
                client.chat.completions.create(**ASK, stream=streamed)

        with pytest.raises(openai.BadRequestError) as caught:
            asyncio.run(asynchronously()) if is_async else synchronously()
        return caught.value

    memory = MemoryRecorder()
    with FakeOpenAI(lambda request: Reply(status=400)) as server:
        alone = attempt(server)
        undo = OpenAIIntegration().install(memory)
        error = attempt(server)
        undo()

    assert (type(error), str(error), error.body) == (type(alone), str(alone), alone.body)
    call = memory.call
    assert (call.outcome, call.status, call.attempts) == ("error", 400, 1)
    assert call.error is error
    assert call.response == server.exchanges[1].response
    assert not call.late


def test_an_error_status_of_a_streaming_response_is_an_error_with_its_body(recorder: MemoryRecorder) -> None:
    with (
        FakeOpenAI([Reply(status=500)]) as server,
        client_of(server) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.chat.completions.with_streaming_response.create(**ASK).__enter__()

    assert (recorder.call.outcome, recorder.call.status) == ("error", 500)
    assert recorder.call.response == server.exchanges[0].response


def test_attempts_are_one_record(recorder: MemoryRecorder) -> None:
    refusals = [Reply(status=429, headers=NO_WAIT), Reply(status=503, headers=NO_WAIT)]
    with FakeOpenAI([*refusals, Reply("It may")]) as server, client_of(server, max_retries=2) as client:
        raw = client.chat.completions.with_raw_response.create(**ASK)

    assert raw.retries_taken == 2
    call = recorder.call
    assert call.bodies == [exchange.request for exchange in server.exchanges]
    assert call.status == 200
    assert call.response == server.exchanges[2].response
    assert call.outcome == "ok"


def test_attempts_that_all_fail_are_one_error(recorder: MemoryRecorder) -> None:
    replies = [Reply(status=429, headers=NO_WAIT), Reply(status=503, headers=NO_WAIT)]
    with (
        FakeOpenAI(replies) as server,
        client_of(server, max_retries=1) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.chat.completions.create(**ASK)

    assert (recorder.call.outcome, recorder.call.attempts, recorder.call.status) == ("error", 2, 503)
    assert recorder.call.response == server.exchanges[1].response


async def test_attempts_of_an_async_stream_are_one_record(recorder: MemoryRecorder) -> None:
    replies = [Reply(status=429, headers=NO_WAIT), Reply()]
    with FakeOpenAI(replies) as server:
        async with async_client_of(server, max_retries=1) as client:
            async for _ in await client.chat.completions.create(**ASK, stream=True):
                pass

    assert (recorder.call.outcome, recorder.call.attempts) == ("ok", 2)
    assert recorder.call.events == server.exchanges[1].events


def test_a_lost_connection_is_an_error_without_status(recorder: MemoryRecorder) -> None:
    with (
        FakeOpenAI([Reply(hang_up=True)]) as server,
        client_of(server) as client,
        pytest.raises(openai.APIConnectionError) as caught,
    ):
        client.chat.completions.create(**ASK)

    assert (recorder.call.outcome, recorder.call.status, recorder.call.attempts) == ("error", 0, 1)
    assert recorder.call.error is caught.value


def test_a_timeout_is_an_error(recorder: MemoryRecorder) -> None:
    with (
        FakeOpenAI([Reply(hold=True)]) as server,
        client_of(server, timeout=0.05) as client,
        pytest.raises(openai.APITimeoutError),
    ):
        client.chat.completions.create(**ASK)

    assert recorder.call.outcome == "error"
    assert isinstance(recorder.call.error, openai.APITimeoutError)


def test_a_whole_answer_is_ok_though_the_sdk_cannot_parse_it_for_the_agent(recorder: MemoryRecorder) -> None:
    class Weather(pydantic.BaseModel):
        raining: bool

    with (
        FakeOpenAI([Reply("no JSON")]) as server,
        client_of(server) as client,
        pytest.raises(pydantic.ValidationError),
    ):
        client.chat.completions.parse(**ASK, response_format=Weather)

    assert (recorder.call.outcome, recorder.call.finishes) == ("ok", 1)
    assert recorder.call.response == server.exchanges[0].response
    assert not recorder.call.late


def test_an_interrupt_cancels_the_call(recorder: MemoryRecorder) -> None:
    def interrupt(request: Any) -> None:
        raise KeyboardInterrupt

    with FakeOpenAI() as server, client_of(server) as client:
        client._client.event_hooks = {"request": [interrupt]}
        with pytest.raises(KeyboardInterrupt):
            client.chat.completions.create(**ASK)

    assert recorder.call.outcome == "cancelled"


async def test_a_cancelled_task_cancels_the_call(recorder: MemoryRecorder) -> None:
    with FakeOpenAI([Reply(hold=True)]) as server:
        async with async_client_of(server) as client:
            task = asyncio.create_task(client.chat.completions.create(**ASK))
            await asyncio.to_thread(server.wait_for_requests, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    assert (recorder.call.outcome, recorder.call.attempts) == ("cancelled", 1)
    assert recorder.call.bodies == [server.exchanges[0].request]


def test_a_call_whose_event_loop_is_gone_is_abandoned(
    recorder: MemoryRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)

    class Transport:
        def __init__(self) -> None:
            self.reached = asyncio.Event()

        async def handle_async_request(self, request: Any) -> None:
            self.reached.set()
            await asyncio.Event().wait()

    async def start() -> None:
        transport: Any = Transport()
        client = openai.AsyncOpenAI(
            base_url="http://127.0.0.1:1",
            api_key="test",
            http_client=openai.DefaultAsyncHttpxClient(transport=transport),
        )
        call = asyncio.ensure_future(client.chat.completions.create(**ASK))
        await transport.reached.wait()
        calls.append(call)

    calls: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    loop.close()
    calls.clear()
    gc.collect()  # closes the coroutine, in another context

    assert recorder.call.outcome == "abandoned"
    assert unraisable == []


# Streams.


def test_a_stream_left_by_break_and_closed_is_closed_early(recorder: MemoryRecorder) -> None:
    with FakeOpenAI() as server, client_of(server) as client:
        chunks = client.chat.completions.create(**ASK, stream=True)
        for _ in chunks:
            break
        assert recorder.call.outcome is None
        chunks.close()

    assert recorder.call.outcome == "closed_early"
    assert recorder.call.events == server.exchanges[0].events[:1]


def test_a_stream_left_by_its_context_is_closed_early(recorder: MemoryRecorder) -> None:
    with (
        FakeOpenAI() as server,
        client_of(server) as client,
        client.chat.completions.create(**ASK, stream=True) as chunks,
    ):
        next(chunks)

    assert recorder.call.outcome == "closed_early"


def test_a_stream_helper_left_by_its_context_is_closed_early(recorder: MemoryRecorder) -> None:
    with (
        FakeOpenAI() as server,
        client_of(server) as client,
        client.chat.completions.stream(**ASK) as events,
    ):
        next(events)

    assert recorder.call.outcome == "closed_early"
    assert recorder.call.events == server.exchanges[0].events[:1]


def test_a_streaming_response_left_early_is_closed_early(recorder: MemoryRecorder) -> None:
    with (
        FakeOpenAI([Reply(hold_after_events=1), Reply()]) as server,
        client_of(server) as client,
        client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response,
    ):
        next(response.iter_lines())
        with client.chat.completions.with_streaming_response.create(**ASK):
            pass

    streamed, unread = recorder.calls
    assert (streamed.outcome, streamed.events) == ("closed_early", server.exchanges[0].events[:1])
    assert (unread.outcome, unread.response) == ("closed_early", None)


async def test_an_async_stream_left_early_is_closed_early(recorder: MemoryRecorder) -> None:
    with FakeOpenAI() as server:
        async with async_client_of(server) as client:
            by_close = await client.chat.completions.create(**ASK, stream=True)
            async for _ in by_close:
                break
            await by_close.close()
            async with await client.chat.completions.create(**ASK, stream=True) as by_exit:
                await by_exit.__anext__()
            async with client.chat.completions.with_streaming_response.create(**ASK) as _:
                pass

    assert [call.outcome for call in recorder.calls] == ["closed_early"] * 3
    assert [len(call.events) for call in recorder.calls] == [1, 1, 0]


def test_a_stream_closed_after_its_end_stays_ok(recorder: MemoryRecorder) -> None:
    with (
        FakeOpenAI() as server,
        client_of(server) as client,
        client.chat.completions.create(**ASK, stream=True) as chunks,
    ):
        list(chunks)
        chunks.close()

    assert (recorder.call.outcome, recorder.call.finishes) == ("ok", 1)


def test_a_stream_without_done_is_ok_when_it_is_exhausted(recorder: MemoryRecorder) -> None:
    with FakeOpenAI([Reply(done=False)]) as server, client_of(server) as client:
        list(client.chat.completions.create(**ASK, stream=True))

    assert recorder.call.outcome == "ok"
    assert recorder.call.events == server.exchanges[0].events


@pytest.mark.parametrize("started", [False, True])
def test_a_stream_that_is_dropped_is_abandoned_and_cleans_up_in_silence(
    recorder: MemoryRecorder, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    with FakeOpenAI() as server, client_of(server) as client:
        chunks = client.chat.completions.create(**ASK, stream=True)
        if started:
            next(chunks)
        del chunks
        gc.collect()

        assert recorder.call.outcome == "abandoned"
        assert len(recorder.call.events) == started
        assert unraisable == []


def test_a_raw_response_whose_stream_is_never_read_is_abandoned(recorder: MemoryRecorder) -> None:
    with FakeOpenAI() as server, client_of(server) as client:
        client.chat.completions.with_raw_response.create(**ASK, stream=True)
        gc.collect()

        assert recorder.call.outcome == "abandoned"


async def test_an_async_stream_that_is_dropped_is_abandoned(recorder: MemoryRecorder) -> None:
    with FakeOpenAI() as server:
        async with async_client_of(server) as client:
            chunks = await client.chat.completions.create(**ASK, stream=True)
            await chunks.__anext__()
            del chunks
            gc.collect()

            assert recorder.call.outcome == "abandoned"


def test_a_connection_cut_in_a_stream_is_an_error_with_what_had_arrived() -> None:
    def read(server: FakeOpenAI) -> tuple[list[Any], BaseException]:
        found: list[Any] = []
        with client_of(server) as client:
            chunks = client.chat.completions.create(**ASK, stream=True)
            with pytest.raises(Exception) as caught:
                found.extend(chunks)
        return found, caught.value

    memory = MemoryRecorder()
    with FakeOpenAI(lambda request: Reply(cut_after_events=2)) as server:
        alone, error_alone = read(server)
        undo = OpenAIIntegration().install(memory)
        found, error = read(server)
        undo()

    assert (found, type(error)) == (alone, type(error_alone))
    assert (memory.call.outcome, memory.call.error) == ("error", error)
    assert memory.call.events == server.exchanges[1].events
    assert len(memory.call.events) == 2


async def test_a_connection_cut_in_an_async_stream_is_an_error(recorder: MemoryRecorder) -> None:
    with FakeOpenAI([Reply(cut_after_events=2)]) as server:
        async with async_client_of(server) as client:
            chunks = await client.chat.completions.create(**ASK, stream=True)
            with pytest.raises(Exception) as caught:
                async for _ in chunks:
                    pass

    assert (recorder.call.outcome, recorder.call.error) == ("error", caught.value)


def test_a_connection_cut_in_a_streaming_response_is_an_error(recorder: MemoryRecorder) -> None:
    with (
        FakeOpenAI([Reply(cut_after_events=2)]) as server,
        client_of(server) as client,
        client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response,
        pytest.raises(Exception) as caught,
    ):
        list(response.iter_lines())

    assert (recorder.call.outcome, recorder.call.error) == ("error", caught.value)
    assert recorder.call.events == server.exchanges[0].events


def test_an_error_event_in_a_stream_is_an_error(recorder: MemoryRecorder) -> None:
    body = b'data: {"error": {"message": "out of memory"}}\n\n'
    with (
        FakeOpenAI([Reply(body=body)]) as server,
        client_of(server) as client,
        pytest.raises(openai.APIError, match="out of memory") as caught,
    ):
        list(client.chat.completions.create(**ASK, stream=True))

    assert (recorder.call.outcome, recorder.call.error) == ("error", caught.value)
    assert recorder.call.events == ['{"error": {"message": "out of memory"}}']


async def test_an_error_event_in_an_async_stream_is_an_error(recorder: MemoryRecorder) -> None:
    with FakeOpenAI([Reply(body=b'data: {"error": {"message": "out of memory"}}\n\n')]) as server:
        async with async_client_of(server) as client:
            with pytest.raises(openai.APIError, match="out of memory"):
                async for _ in await client.chat.completions.create(**ASK, stream=True):
                    pass

    assert recorder.call.outcome == "error"


async def test_a_task_cancelled_in_a_stream_cancels_the_call(recorder: MemoryRecorder) -> None:
    with FakeOpenAI([Reply(hold_after_events=1)]) as server:
        async with async_client_of(server) as client:
            waiting = asyncio.Event()

            async def read() -> None:
                async for _ in await client.chat.completions.create(**ASK, stream=True):
                    waiting.set()

            task = asyncio.create_task(read())
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    assert recorder.call.outcome == "cancelled"
    assert recorder.call.events == server.exchanges[0].events[:1]


def test_a_stream_read_in_another_thread_ends_right(recorder: MemoryRecorder) -> None:
    with FakeOpenAI() as server, client_of(server) as client:
        chunks = client.chat.completions.create(**ASK, stream=True)
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.extend(chunks))
        reader.start()
        reader.join()

    assert len(found) == len(server.exchanges[0].events) - 1
    assert recorder.call.events == server.exchanges[0].events
    assert (recorder.call.outcome, recorder.call.finishes) == ("ok", 1)


def test_two_streams_read_in_turns_keep_to_their_own_records(recorder: MemoryRecorder) -> None:
    with FakeOpenAI([Reply("one two"), Reply("three four")]) as server, client_of(server) as client:
        streams = [client.chat.completions.create(**ASK, stream=True) for _ in range(2)]
        for _ in zip(*streams, strict=True):
            pass

    assert [call.events for call in recorder.calls] == [exchange.events for exchange in server.exchanges]
    assert [call.outcome for call in recorder.calls] == ["ok", "ok"]
