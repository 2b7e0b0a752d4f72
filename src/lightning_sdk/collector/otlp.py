"""The standard OTLP trace service over gRPC: spans of programs that do not use our client.

- A span is stored if it carries an attribute `gen_ai.*`; others are accepted and dropped, counted as
  `otlp_ignored`, since they tell of no model call.
- The answer comes after the commit.
- A span is known by its trace and span id: the producer id is made of both, and the span is its record
  number 1, so that a retry doubles nothing.
- A trace is a rollout: "ro_" and the trace id. What its spans mean is for the assembly to say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import grpc.aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceServicer
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from lightning_sdk._proto.ingest_pb2 import Frame
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
        batches: list[Batch] = []
        reasons: list[str] = []
        for resource_spans, span in _spans(request):
            if not any(attribute.key.startswith(_MARK) for attribute in span.attributes):
                self.counters["otlp_ignored"] += 1
            elif not _is_storable(span):
                reasons.append("no trace id of 16 and span id of 8 bytes, or no possible time")
            else:
                batches.append(_to_batch(resource_spans, span))
        try:
            if batches:
                acks = await (await self._committer.submit(batches, request.ByteSize()))
                reasons += [refusal.reason for ack in acks for refusal in ack.refusals]
        except Exception as error:
            await abort_with(context, error)
        self.counters["otlp_rejected"] += len(reasons)
        if not reasons:
            return ExportTraceServiceResponse()
        return ExportTraceServiceResponse(
            partial_success=ExportTracePartialSuccess(
                rejected_spans=len(reasons), error_message="; ".join(sorted(set(reasons))[:_MAX_REASONS])
            )
        )


def _spans(request: ExportTraceServiceRequest) -> Iterator[tuple[ResourceSpans, Span]]:
    """Each span, with a ResourceSpans that holds nothing but it."""
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield (
                    ResourceSpans(
                        resource=resource_spans.resource,
                        schema_url=resource_spans.schema_url,
                        scope_spans=[
                            ScopeSpans(
                                scope=scope_spans.scope, schema_url=scope_spans.schema_url, spans=[span]
                            )
                        ],
                    ),
                    span,
                )


def _is_storable(span: Span) -> bool:
    return (
        len(span.trace_id) == _TRACE_ID_BYTES
        and any(span.trace_id)
        and len(span.span_id) == _SPAN_ID_BYTES
        and any(span.span_id)
        and max(span.start_time_unix_nano, span.end_time_unix_nano) <= MAX_INT
    )


def _to_batch(resource_spans: ResourceSpans, span: Span) -> Batch:
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
