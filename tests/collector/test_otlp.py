"""OTLP over gRPC on the collector's port, fed by the stock exporter of the OpenTelemetry SDK.

1. Spans with gen_ai attributes are stored as they came, each under its trace; others are dropped, counted.
2. A span that is sent again is stored once.
3. What is no span is rejected in the answer, and the rest of the request is stored.
4. A call that our own client recorded is not told again by the span that an instrumentation made of it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from lightning_sdk._proto.read_pb2 import StatsRequest
from lightning_sdk._proto.read_pb2_grpc import ReadStub
from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.mdp import assemble
from support.collectors import collector_thread
from support.full_disk import full_disk
from support.stores import ALL


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "traces.db")
    yield store
    store.close()


@pytest.fixture
def target(store: SqliteStore) -> Iterator[str]:
    with collector_thread(store) as target:
        yield target


def stored_spans(store: SqliteStore) -> dict[str, list[ResourceSpans]]:
    """By rollout id, what its OtelSpan records hold."""
    return {
        summary.rollout_id: [
            ResourceSpans.FromString(each.record.otel_span.resource_spans) for each in records
        ]
        for summary, records in store.read_rollouts(ALL)
    }


def gen_ai_span(trace_id: bytes = b"t" * 16, span_id: bytes = b"s" * 8, **fields: object) -> Span:
    model = KeyValue(key="gen_ai.request.model", value=AnyValue(string_value="tiny"))
    return Span(trace_id=trace_id, span_id=span_id, attributes=[model], **fields)


def request_of(*spans: Span) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=spans)])])


class _Keeping(SpanExporter):
    """Keeps the spans, so that a test can send them again."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: object) -> SpanExportResult:
        self.spans += spans  # type: ignore[operator]
        return SpanExportResult.SUCCESS


def test_the_stock_exporter_delivers_model_calls_and_a_retry_doubles_nothing(
    target: str, store: SqliteStore
) -> None:
    kept = _Keeping()
    provider = TracerProvider(resource=Resource({"service.name": "their agent"}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("their.instrumentation", "1.2")
    with tracer.start_as_current_span("agent run") as root:
        for model in ("tiny", "small"):
            with tracer.start_as_current_span("chat", attributes={"gen_ai.request.model": model}):
                pass
    exporter = OTLPSpanExporter(endpoint=target, insecure=True)
    for _ in range(2):
        assert exporter.export(kept.spans) is SpanExportResult.SUCCESS
    exporter.shutdown()

    trace_id = f"{root.get_span_context().trace_id:032x}"
    ((rollout, found),) = stored_spans(store).items()
    assert rollout == f"ro_{trace_id}"
    assert len(found) == 2
    for resource_spans in found:
        (scope_spans,) = resource_spans.scope_spans
        (span,) = scope_spans.spans
        assert span.trace_id.hex() == trace_id
        assert scope_spans.scope.name == "their.instrumentation"
        assert [(each.key, each.value.string_value) for each in resource_spans.resource.attributes] == [
            ("service.name", "their agent")
        ]
    models = {span.attributes[0].value.string_value for each in found for span in each.scope_spans[0].spans}
    assert models == {"tiny", "small"}
    assert store.stats().counters["duplicates"] == 2
    with grpc.insecure_channel(target) as channel:
        counters = ReadStub(channel).GetStats(StatsRequest()).counters
    assert counters["otlp_ignored"] == 2


def test_a_span_becomes_a_record_of_its_trace(target: str, store: SqliteStore) -> None:
    span = gen_ai_span(start_time_unix_nano=100, end_time_unix_nano=200, name="chat")
    with grpc.insecure_channel(target) as channel:
        answer = TraceServiceStub(channel).Export(request_of(span))
    assert not answer.HasField("partial_success")
    ((summary, (sourced,)),) = store.read_rollouts(ALL)
    record = sourced.record
    assert (summary.rollout_id, record.group_id) == (f"ro_{(b't' * 16).hex()}",) * 2
    assert (record.trace_id, record.span_id, record.attempt) == (b"t" * 16, b"s" * 8, 1)
    assert (record.start_ns, record.end_ns, sourced.seq) == (100, 200, 1)
    assert ResourceSpans.FromString(record.otel_span.resource_spans).scope_spans[0].spans[0] == span


def test_what_has_no_ids_is_rejected_and_the_rest_is_stored(target: str, store: SqliteStore) -> None:
    request = request_of(
        gen_ai_span(span_id=b"s" * 8),
        gen_ai_span(trace_id=b"short"),
        gen_ai_span(trace_id=bytes(16)),
        gen_ai_span(span_id=b""),
        gen_ai_span(span_id=b"2" * 8, start_time_unix_nano=1 << 63),
    )
    with grpc.insecure_channel(target) as channel:
        answer = TraceServiceStub(channel).Export(request)
        counters = ReadStub(channel).GetStats(StatsRequest()).counters
    assert answer.partial_success.rejected_spans == 4
    assert "16" in answer.partial_success.error_message
    assert counters["otlp_rejected"] == 4
    assert counters["records"] == 1


def test_another_span_under_the_same_ids_is_rejected(target: str, store: SqliteStore) -> None:
    with grpc.insecure_channel(target) as channel:
        export = TraceServiceStub(channel).Export
        assert not export(request_of(gen_ai_span(name="one"))).HasField("partial_success")
        assert export(request_of(gen_ai_span(name="two"))).partial_success.rejected_spans == 1
    assert store.stats().counters["integrity_errors"] == 1


def test_what_a_request_grows_to_is_bounded(target: str, store: SqliteStore) -> None:
    """A resource is stored with each of its spans: a small request could become any amount of memory."""

    def grown(resource_bytes: int, spans: int) -> ExportTraceServiceRequest:
        several = [
            gen_ai_span(bytes([spans % 251]) * 16, at.to_bytes(8, "big")) for at in range(1, spans + 1)
        ]
        request = request_of(*several)
        resource = request.resource_spans[0].resource
        resource.attributes.append(KeyValue(key="r", value=AnyValue(string_value="x" * resource_bytes)))
        return request

    with grpc.insecure_channel(target) as channel:
        export = TraceServiceStub(channel).Export
        answer = export(grown(100_000, 500))
        assert answer.partial_success.rejected_spans == 500
        assert "resource and scope of more than 65536 bytes" in answer.partial_success.error_message
        assert store.stats().counters["records"] == 0
        # 64 MiB hold 1117 spans of 60,000 bytes and a little; 83 of 1200 find no room.
        answer = export(grown(60_000, 1200))
        stored = store.stats().counters["records"]
        assert stored + answer.partial_success.rejected_spans == 1200
        assert stored * 60_000 < 64 << 20 < (stored + 2) * 60_200
        assert "send several" in answer.partial_success.error_message
        answer = export(grown(0, 17_000))
        assert answer.partial_success.rejected_spans == 17_000 - 16_384
        assert "16384 spans" in answer.partial_success.error_message


def test_an_empty_request_is_answered(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        answer = TraceServiceStub(channel).Export(ExportTraceServiceRequest())
    assert not answer.HasField("partial_success")


def test_a_store_that_cannot_be_written_asks_the_exporter_to_try_again(
    target: str, store: SqliteStore
) -> None:
    big = gen_ai_span(name="x" * 1_000_000)
    with grpc.insecure_channel(target) as channel:
        with full_disk(store), pytest.raises(grpc.RpcError) as caught:
            TraceServiceStub(channel).Export(request_of(big))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        TraceServiceStub(channel).Export(request_of(big))
    assert store.stats().counters["records"] == 1


_BOTH = """
import json
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import lightning_sdk as ls
from lightning_sdk.client.recorder import ProcessRecorder

target = sys.argv[1]
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=target, insecure=True)))
tracer = provider.get_tracer("their.instrumentation")
ls.init(endpoint=f"grpc://{target}", integrations=[])
message = {"role": "assistant", "content": "a"}
body = {"id": "re_1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def chat():
    recording = ProcessRecorder().start_call(
        integration="openai", api="chat.completions", url="http://host/v1", streamed=False
    )
    if recording is not None:
        recording.sent(json.dumps({"messages": [{"role": "user", "content": "q"}]}).encode())
        recording.answered(200, {})
        recording.received(json.dumps(body).encode())
        recording.finish("ok")


with tracer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}):
    chat()  # outside any rollout: only the span tells of it
with ls.rollout(task_id="t1"):
    with tracer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}):
        chat()
ls.shutdown()
provider.shutdown()
"""


def test_a_call_of_our_own_client_is_not_told_again_by_its_span(target: str, store: SqliteStore) -> None:
    subprocess.run([sys.executable, "-c", _BOTH, target], check=True, timeout=60)
    assert store.stats().counters["duplicate_spans"] == 1
    assert store.stats().counters["rollouts"] == 2
    told = {summary.task_id: assemble(records) for summary, records in store.read_rollouts(ALL)}
    ((ours,), (theirs,)) = told["t1"], told[""]
    assert [call.call_id.startswith("ca_") for call in ours.transitions] == [True]
    assert [call.call_id.startswith("otel_") for call in theirs.transitions] == [True]
