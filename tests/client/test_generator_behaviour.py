"""Traced generators behave exactly as generators, and leak nothing to their consumer.

1. send, throw, close, return value and `yield from` do what they do without the decorator.
2. The scope is there inside each step and gone between the steps, in sync and in async generators.
3. It ends once: at exhaustion, by an exception, closed early, or dropped.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

import lightning_sdk as ls
from lightning_sdk.client import scope
from lightning_sdk.testing import Capture, capture
from support.client_records import of_kind


def plain(target: Any) -> Any:
    return target


def both(test: Callable[[Any], Any]) -> None:
    """The same conversation with and without the decorator has the same result."""
    expected = test(plain)
    with capture():
        assert test(ls.trace_agent) == expected


def outcomes(cap: Capture) -> tuple[list[int], list[int]]:
    """Outcomes of scopes and of rollouts."""
    return (
        [record.scope_end.outcome for record in of_kind(cap.records, "scope_end")],
        [record.rollout_end.outcome for record in of_kind(cap.records, "rollout_end")],
    )


OK, ERROR, CANCELLED, CLOSED_EARLY, ABANDONED = 1, 2, 3, 4, 5


def test_what_is_sent_arrives_and_what_is_returned_comes_back() -> None:
    def conversation(decorate: Any) -> Any:
        @decorate
        def echo() -> Generator[Any, Any, str]:
            got = yield "first"
            got = yield got * 2
            return f"last {got}"

        talk = echo()
        said = [next(talk), talk.send(21)]
        with pytest.raises(StopIteration) as stop:
            talk.send("x")
        return said, stop.value.value

    both(conversation)


def test_what_is_thrown_can_be_caught_inside_and_has_no_foreign_context() -> None:
    def conversation(decorate: Any) -> Any:
        @decorate
        def catching() -> Generator[Any, Any, None]:
            try:
                yield 1
            except ValueError as error:
                yield str(error)
            raise KeyError("later")

        talk = catching()
        next(talk)
        caught = talk.throw(ValueError("thrown in"))
        with pytest.raises(KeyError) as later:
            next(talk)
        return caught, later.value.args, later.value.__context__

    both(conversation)


def test_yield_from_hands_values_exceptions_and_the_result_through() -> None:
    def conversation(decorate: Any) -> Any:
        @decorate
        def inner() -> Generator[Any, Any, str]:
            try:
                got = yield 1
            except LookupError:
                got = yield "caught"
            return f"returned {got}"

        def outer() -> Generator[Any, Any, None]:
            result = yield from inner()
            yield result

        talk = outer()
        return next(talk), talk.throw(LookupError()), talk.send(5)

    both(conversation)


def test_a_generator_that_ignores_close_is_told_off_as_usual() -> None:
    def conversation(decorate: Any) -> Any:
        @decorate
        def stubborn() -> Iterator[int]:
            try:
                yield 1
            except GeneratorExit:
                yield 2

        talk = stubborn()
        next(talk)
        with pytest.raises(RuntimeError, match="generator ignored GeneratorExit") as caught:
            talk.close()
        return str(caught.value)

    both(conversation)


def test_stop_iteration_in_the_body_becomes_a_runtime_error_as_usual() -> None:
    def conversation(decorate: Any) -> Any:
        @decorate
        def wrong() -> Iterator[int]:
            yield 1
            raise StopIteration("oops")

        with pytest.raises(RuntimeError, match="generator raised StopIteration") as caught:
            list(wrong())
        return str(caught.value)

    both(conversation)


def test_async_send_and_throw_do_what_they_do_without_the_decorator() -> None:
    def conversation(decorate: Any) -> Any:
        @decorate
        async def echo() -> Any:
            got = yield "first"
            try:
                got = yield got * 2
            except ValueError as error:
                yield f"caught {error}"
            raise KeyError("later")

        async def talk() -> Any:
            stream = echo()
            said = [await stream.asend(None), await stream.asend(4), await stream.athrow(ValueError("v"))]
            with pytest.raises(KeyError) as later:
                await stream.asend(None)
            with pytest.raises(StopAsyncIteration):
                await stream.asend(None)
            return said, later.value.__context__

        return asyncio.run(talk())

    both(conversation)


def test_the_consumer_of_a_generator_sees_no_scope_between_the_steps() -> None:
    @ls.trace_agent(name="streamer")
    def stream() -> Iterator[str]:
        for _ in range(3):
            current = scope.current()
            assert current is not None
            yield current.agent

    with capture() as cap:
        for agent in stream():
            assert agent == "streamer"
            assert scope.current() is None
    assert outcomes(cap) == ([OK], [OK])


async def test_the_consumer_of_an_async_generator_sees_no_scope_between_the_steps() -> None:
    @ls.trace_agent(name="streamer")
    async def stream() -> AsyncIterator[str]:
        for _ in range(3):
            await asyncio.sleep(0)
            current = scope.current()
            assert current is not None
            yield current.agent

    with capture() as cap:
        async for agent in stream():
            assert agent == "streamer"
            assert scope.current() is None
    assert outcomes(cap) == ([OK], [OK])


def test_two_generators_that_take_turns_keep_their_own_scopes() -> None:
    @ls.trace_agent
    def stream(name: str) -> Iterator[tuple[str, str]]:
        for _ in range(3):
            current = scope.current()
            assert current is not None
            yield name, current.scope_id

    with capture():
        turns = list(zip(stream("a"), stream("b"), strict=True))
    assert len({turn[0] for turn in turns}) == 1
    assert len({turn[1] for turn in turns}) == 1
    assert turns[0][0][1] != turns[0][1][1]


def test_a_generator_resumed_by_another_agent_stays_itself_and_gives_the_scope_back() -> None:
    @ls.trace_agent(name="source")
    def source() -> Iterator[str]:
        while True:
            current = scope.current()
            assert current is not None
            yield current.agent

    @ls.trace_agent(name="consumer")
    def consume(stream: Iterator[str]) -> tuple[str, str]:
        step = next(stream)
        current = scope.current()
        assert current is not None
        return step, current.agent

    with capture():
        stream = source()
        assert next(stream) == "source"
        assert consume(stream) == ("source", "consumer")


def test_closing_early_is_recorded_as_that_and_the_rollout_as_cancelled() -> None:
    cleaned: list[str] = []

    @ls.trace_agent
    def stream() -> Iterator[int]:
        try:
            yield 1
        finally:
            current = scope.current()
            cleaned.append(current.agent if current else "outside")

    with capture() as cap:
        running = stream()
        next(running)
        running.close()  # type: ignore[attr-defined]
    assert len(cleaned) == 1
    assert cleaned[0].endswith("stream")
    assert outcomes(cap) == ([CLOSED_EARLY], [CANCELLED])


def test_dropping_a_generator_is_recorded_as_abandoned() -> None:
    @ls.trace_agent
    def stream() -> Iterator[int]:
        yield 1
        yield 2

    with capture() as cap:
        for _ in stream():
            break
        gc.collect()
    assert outcomes(cap) == ([ABANDONED], [CANCELLED])


def test_dropping_a_generator_in_a_reference_cycle_is_recorded_when_it_is_collected() -> None:
    @ls.trace_agent
    def stream(holder: list[Any]) -> Iterator[int]:
        yield 1

    with capture() as cap:
        holder: list[Any] = []
        holder.append(stream(holder))
        next(holder[0])
        del holder
        gc.collect()
    assert len(outcomes(cap)[0]) == 1
    assert outcomes(cap)[1] == [CANCELLED]


async def test_closing_and_dropping_async_generators_is_told_apart() -> None:
    @ls.trace_agent
    async def stream() -> AsyncIterator[int]:
        yield 1
        yield 2

    with capture() as cap:
        closed = stream()
        await closed.__anext__()
        await closed.aclose()  # type: ignore[attr-defined]
        assert outcomes(cap)[0] == [CLOSED_EARLY]
        async for _ in stream():
            break
        gc.collect()
        while len(of_kind(cap.records, "rollout_end")) < 2:
            await asyncio.sleep(0)
    assert outcomes(cap) == ([CLOSED_EARLY, ABANDONED], [CANCELLED, CANCELLED])


def test_the_end_of_the_event_loop_closes_an_open_async_generator_without_a_word() -> None:
    problems: list[Any] = []

    @ls.trace_agent
    async def stream() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def main() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        running = stream()
        await running.__anext__()
        return running

    with capture() as cap:
        kept = asyncio.run(main())
    assert problems == []
    assert outcomes(cap) == ([CLOSED_EARLY], [CANCELLED])
    del kept


def test_an_exception_in_a_step_ends_it_and_the_rollout() -> None:
    @ls.trace_agent
    def stream() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    with capture() as cap, pytest.raises(ValueError, match="broken"):
        list(stream())
    assert outcomes(cap) == ([ERROR], [ERROR])


def test_a_generator_that_never_starts_is_no_rollout() -> None:
    @ls.trace_agent
    def stream() -> Iterator[int]:
        yield 1

    with capture() as cap:
        stream()
        stream().close()  # type: ignore[attr-defined]
    assert cap.records == []


def test_a_generator_returned_by_a_function_and_never_started_is_abandoned() -> None:
    @ls.trace_agent
    def make() -> Iterator[int]:
        return (number for number in range(3))

    with capture() as cap:
        make()
        gc.collect()
    assert outcomes(cap) == ([ABANDONED], [CANCELLED])


def test_a_generator_that_has_begun_elsewhere_is_returned_as_it_is() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)

    running = numbers()
    next(running)

    @ls.trace_agent
    def hand_over() -> Iterator[int]:
        return running

    with capture():
        assert hand_over() is running


def test_a_value_that_was_yielded_is_not_kept_alive() -> None:
    class Value:
        pass

    @ls.trace_agent
    def stream() -> Iterator[Value]:
        yield Value()
        yield Value()

    with capture():
        running = stream()
        first = weakref.ref(next(running))
        assert first() is None


async def test_an_async_generator_that_shares_variables_with_others_is_traced_like_any_other() -> None:
    shared = [1]
    steps = 0

    @ls.trace_agent(name="closure")
    async def stream() -> AsyncIterator[int]:
        nonlocal steps
        for value in shared:
            steps += 1
            yield value

    @ls.trace_agent(name="cell")
    async def other() -> AsyncIterator[int]:
        seen = 2

        def look() -> int:
            return seen

        yield look()

    with capture() as cap:
        assert [value async for value in stream()] == [1]
        assert [value async for value in other()] == [2]
    assert [scope.agent for scope in cap.scopes] == ["closure", "cell"]
    assert steps == 1


async def test_an_async_generator_that_has_begun_is_somebody_elses() -> None:
    async def stream() -> AsyncIterator[int]:
        yield 1
        yield 2

    begun = stream()
    assert await anext(begun) == 1

    @ls.trace_agent
    def give() -> AsyncIterator[int]:
        return begun

    with capture():
        assert give() is begun
    assert await anext(begun) == 2
