"""OpenTelemetry: ids of the user's spans on our records, our scopes as spans of the user's provider."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import lightning_sdk as ls
from lightning_sdk.testing import capture
from support.client_records import make_call, of_kind


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """A provider as a user would configure it, for one test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def span_called(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    return next(span for span in exporter.get_finished_spans() if span.name == name)


@ls.trace_agent(name="planner")
def plan() -> None:
    make_call()


def test_without_a_provider_records_have_no_span() -> None:
    with capture() as cap:
        plan()
    assert {(sourced.record.trace_id, sourced.record.span_id) for sourced in cap.records} == {(b"", b"")}


def test_a_scope_is_a_span_with_the_names_of_agent_and_rollout(exporter: InMemorySpanExporter) -> None:
    with capture() as cap, trace.get_tracer("user").start_as_current_span("request") as request:
        plan()
        assert trace.get_current_span() is request
    span = span_called(exporter, "invoke_agent planner")
    attributes = span.attributes
    assert attributes is not None
    assert attributes["gen_ai.agent.name"] == "planner"
    assert attributes["lightning.rollout_id"] == cap.records[0].record.rollout_id
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    ids = span.get_span_context()
    assert ids is not None
    for kind in ("scope_start", "scope_end", "call"):
        record = of_kind(cap.records, kind)[0]
        assert record.trace_id == ids.trace_id.to_bytes(16, "big")
        assert record.span_id == ids.span_id.to_bytes(8, "big")


def test_nested_scopes_are_nested_spans_also_in_async_code(exporter: InMemorySpanExporter) -> None:
    @ls.trace_agent(name="team")
    async def team() -> None:
        await asyncio.sleep(0)
        plan()

    with capture():
        asyncio.run(team())
    outer, inner = span_called(exporter, "invoke_agent team"), span_called(exporter, "invoke_agent planner")
    outer_ids = outer.get_span_context()
    assert outer_ids is not None
    assert inner.parent is not None
    assert inner.parent.span_id == outer_ids.span_id


def test_a_span_is_never_active_between_the_steps_of_a_generator(exporter: InMemorySpanExporter) -> None:
    @ls.trace_agent(name="streamer")
    def stream() -> Iterator[str]:
        for _ in range(2):
            yield getattr(trace.get_current_span(), "name", "")

    @ls.trace_agent(name="async_streamer")
    async def async_stream() -> AsyncIterator[str]:
        for _ in range(2):
            await asyncio.sleep(0)
            yield getattr(trace.get_current_span(), "name", "")

    async def consume() -> None:
        async for name in async_stream():
            assert name == "invoke_agent async_streamer"
            assert not trace.get_current_span().is_recording()

    with capture():
        for name in stream():
            assert name == "invoke_agent streamer"
            assert not trace.get_current_span().is_recording()
        asyncio.run(consume())
    assert len(exporter.get_finished_spans()) == 2


Watch = list[tuple[str, object, object]]


def see(watch: Watch, where: str) -> None:
    """What the code finds active: the name of the span that is not ours, and a value of its own."""
    span = trace.get_current_span()
    name = getattr(span, "name", "")
    watch.append((where, "" if name.startswith("invoke_agent") else name, baggage.get_baggage("k")))
    if where.startswith("outside"):
        assert not name.startswith("invoke_agent")


def span_over_a_yield(watch: Watch) -> Iterator[None]:
    with trace.get_tracer("user").start_as_current_span("x"):
        yield
        see(watch, "inside x")
        yield
    see(watch, "inside after x")
    yield


def value_over_a_yield(watch: Watch) -> Iterator[None]:
    token = context.attach(baggage.set_baggage("k", "v"))
    yield
    see(watch, "inside with k")
    context.detach(token)
    see(watch, "inside without k")
    yield


def both_over_a_yield(watch: Watch) -> Iterator[None]:
    token = context.attach(baggage.set_baggage("k", "v"))
    with trace.get_tracer("user").start_as_current_span("y"):
        yield
        see(watch, "inside y")
    yield
    see(watch, "inside with k")
    context.detach(token)
    yield


def never_closed(watch: Watch) -> Iterator[None]:
    context.attach(baggage.set_baggage("k", "left"))
    yield


@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("code", [span_over_a_yield, value_over_a_yield, both_over_a_yield, never_closed])
def test_contexts_that_a_generator_leaves_attached_are_as_they_would_be_without_us(
    exporter: InMemorySpanExporter,
    code: Callable[[Watch], Iterator[None]],
    asynchronous: bool,
    given_up: bool,
) -> None:
    async def acode(watch: Watch) -> AsyncIterator[None]:
        for _ in code(watch):
            await asyncio.sleep(0)
            yield

    def consume(generator: Any, watch: Watch) -> None:
        see(watch, "outside before")
        for step, _ in enumerate(generator(watch)):
            see(watch, f"outside {step}")
            with trace.get_tracer("user").start_as_current_span(f"consumer {step}"):
                see(watch, f"outside {step} in a span")
            if given_up:
                break
        see(watch, "outside after")

    async def aconsume(generator: Any, watch: Watch) -> None:
        see(watch, "outside before")
        running = generator(watch)
        async for _ in running:
            see(watch, "outside")
            if given_up:
                break
        await running.aclose()
        see(watch, "outside after")

    def watched(generator: Any) -> Watch:
        watch: Watch = []
        run = (lambda: asyncio.run(aconsume(generator, watch))) if asynchronous else None
        contextvars.copy_context().run(run or (lambda: consume(generator, watch)))
        return watch

    plain = acode if asynchronous else code
    with capture():
        assert watched(ls.trace_agent("generator")(plain)) == watched(plain)
    assert span_called(exporter, "invoke_agent generator")


def test_a_span_that_a_generator_holds_open_is_inside_ours(exporter: InMemorySpanExporter) -> None:
    with capture():
        list(ls.trace_agent("streamer")(span_over_a_yield)([]))
    ours = span_called(exporter, "invoke_agent streamer").get_span_context()
    held = span_called(exporter, "x").parent
    assert ours is not None
    assert held is not None
    assert held.span_id == ours.span_id


def test_a_failure_marks_the_span_without_its_message(exporter: InMemorySpanExporter) -> None:
    @ls.trace_agent(name="failing")
    def fail() -> None:
        raise LookupError("secret")

    with capture(), pytest.raises(LookupError):
        fail()
    span = span_called(exporter, "invoke_agent failing")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "LookupError"
    assert "secret" not in span.to_json()
