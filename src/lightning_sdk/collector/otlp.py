"""The standard OTLP trace service over gRPC: spans of programs that do not use our client.

- A span is stored if it carries an attribute `gen_ai.*`; others are accepted and dropped, counted as
  `otlp_ignored`, since they tell of no model call.
- The answer comes after the commit.
- A record holds its span's resource and scope too, so that a request grows as it is taken apart. That growth is
  bounded: what a request may become in all, how large a resource with its scope may be, and how much of it is
  in memory at once. What is beyond that is rejected in the answer, counted as `otlp_rejected`.
- A span is known by its trace and span id: the producer id is made of both, and the span is its record
  number 1, so that a retry doubles nothing.
- A trace is a rollout: "ro_" and the trace id. What its spans mean is for the assembly to say.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import grpc.aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceServicer
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from lightning_sdk._proto.ingest_pb2 import Ack, Frame
from lightning_sdk.client.segments import MAX_MESSAGE_BYTES
from lightning_sdk.collector.committer import GroupCommitter
from lightning_sdk.collector.status import abort_with
from lightning_sdk.collector.store.admission import MAX_INT, PRODUCER_BYTES
from lightning_sdk.collector.store.base import Batch
from lightning_sdk.records import OtelSpan, Record, checksum

_MARK: Final = "gen_ai."
_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8
# How many different ones the answer tells.
_MAX_REASONS: Final = 5
# Far beyond what exporters send (512 spans a request by default), far below what could exhaust anything.
_MAX_SPANS: Final = 16_384
_MAX_SHARED_BYTES: Final = 64 << 10
_MAX_REQUEST_BYTES: Final = MAX_MESSAGE_BYTES
# The event loop and other senders get their turn after so many spans, or so many bytes of them.
_SLICE_SPANS: Final = 256
_SLICE_BYTES: Final = 4 << 20


class TraceService(TraceServiceServicer):
    """TraceService/Export into the store."""

    def __init__(self, committer: GroupCommitter) -> None:
        self._committer = committer
        # Spans since the start of this process, by what became of them.
        self.counters = {"otlp_ignored": 0, "otlp_rejected": 0}

    async def Export(  # noqa: N802 - gRPC's name
        self,
        request: ExportTraceServiceRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> ExportTraceServiceResponse:
        """Store the spans that tell of model calls; the answer tells how many were rejected, and why."""
        answers: list[asyncio.Future[list[Ack]]] = []
        taken = _Taken()
        try:
            for batches, size_bytes in _slices(request, taken):
                answers.append(await self._committer.submit(batches, size_bytes))
                await asyncio.sleep(0)
            for answer in answers:
                taken.reasons.extend(refusal.reason for ack in await answer for refusal in ack.refusals)
        except Exception as error:
            await abort_with(context, error)
        self.counters["otlp_ignored"] += taken.ignored
        self.counters["otlp_rejected"] += len(taken.reasons)
        if not taken.reasons:
            return ExportTraceServiceResponse()
        return ExportTraceServiceResponse(
            partial_success=ExportTracePartialSuccess(
                rejected_spans=len(taken.reasons),
                error_message="; ".join(sorted(set(taken.reasons))[:_MAX_REASONS]),
            )
        )


@dataclass(slots=True)
class _Taken:
    """What became of a request's spans."""

    spans: int = 0
    size_bytes: int = 0
    ignored: int = 0
    # Of each span that is rejected, why.
    reasons: list[str] = field(default_factory=list)


def _slices(request: ExportTraceServiceRequest, taken: _Taken) -> Iterator[tuple[list[Batch], int]]:
    """The spans that can be stored, a few at a time, with their size."""
    batches: list[Batch] = []
    size_bytes = 0
    for resource_spans, scope_spans in _scopes(request):
        shared = ResourceSpans(
            resource=resource_spans.resource,
            schema_url=resource_spans.schema_url,
            scope_spans=[ScopeSpans(scope=scope_spans.scope, schema_url=scope_spans.schema_url)],
        )
        shared_bytes = shared.ByteSize()
        for span in scope_spans.spans:
            if not any(attribute.key.startswith(_MARK) for attribute in span.attributes):
                taken.ignored += 1
                continue
            reason = _why_not(span, shared_bytes, taken)
            if reason:
                taken.reasons.append(reason)
                continue
            batch = _to_batch(shared, span)
            span_bytes = len(batch[1][0].record)
            taken.spans += 1
            taken.size_bytes += span_bytes
            batches.append(batch)
            size_bytes += span_bytes
            if len(batches) == _SLICE_SPANS or size_bytes >= _SLICE_BYTES:
                yield batches, size_bytes
                batches, size_bytes = [], 0
    if batches:
        yield batches, size_bytes


def _scopes(request: ExportTraceServiceRequest) -> Iterator[tuple[ResourceSpans, ScopeSpans]]:
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            yield resource_spans, scope_spans


def _why_not(span: Span, shared_bytes: int, taken: _Taken) -> str:
    """Why a span cannot be stored; empty where it can."""
    if not _is_storable(span):
        return "no trace id of 16 and span id of 8 bytes, or no possible time"
    if shared_bytes > _MAX_SHARED_BYTES:
        return f"a resource and scope of more than {_MAX_SHARED_BYTES} bytes"
    if taken.spans >= _MAX_SPANS:
        return f"more than {_MAX_SPANS} spans in one request: send several"
    if taken.size_bytes + shared_bytes + span.ByteSize() > _MAX_REQUEST_BYTES:
        return (
            f"more than {_MAX_REQUEST_BYTES} bytes of spans with their resource in one request: send several"
        )
    return ""


def _is_storable(span: Span) -> bool:
    return (
        len(span.trace_id) == _TRACE_ID_BYTES
        and any(span.trace_id)
        and len(span.span_id) == _SPAN_ID_BYTES
        and any(span.span_id)
        and max(span.start_time_unix_nano, span.end_time_unix_nano) <= MAX_INT
    )


def _to_batch(shared: ResourceSpans, span: Span) -> Batch:
    """The record of a span, under a producer of its own. `shared` is its resource and scope."""
    resource_spans = ResourceSpans()
    resource_spans.CopyFrom(shared)
    resource_spans.scope_spans[0].spans.append(span)
    rollout_id = f"ro_{span.trace_id.hex()}"
    record = Record(
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        rollout_id=rollout_id,
        attempt=1,
        group_id=rollout_id,  # without a task, a rollout is a group of its own
        trace_id=span.trace_id,
        span_id=span.span_id,
        otel_span=OtelSpan(resource_spans=resource_spans.SerializeToString(deterministic=True)),
    )
    data = record.SerializeToString(deterministic=True)
    producer = hashlib.blake2b(
        span.trace_id + span.span_id, digest_size=PRODUCER_BYTES, person=b"otlp"
    ).digest()
    return producer, [Frame(seq=1, checksum=checksum(data), record=data)]
