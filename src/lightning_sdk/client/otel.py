"""OpenTelemetry, where the user's program has it loaded: ids of the active span, and scopes as spans of their
own.

Nothing here imports opentelemetry: a program that has not imported it has no span to speak of.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_sdk.client import faults

if TYPE_CHECKING:
    from lightning_sdk.records import OutcomeName


class SpanIds(NamedTuple):
    """Trace id (16 bytes) and span id (8 bytes); both empty where there is no span."""

    trace_id: bytes
    span_id: bytes


NO_SPAN = SpanIds(b"", b"")


def active_ids() -> SpanIds:
    """Ids of the span that is active in this context."""
    trace = _trace()
    if trace is None:
        return NO_SPAN
    with faults.guard("otel"):
        return _ids(trace.get_current_span())
    return NO_SPAN


class ScopeSpan:
    """One scope as a span ``invoke_agent NAME``. It is attached only while the scope's code runs."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Any) -> None:
        self._span = span
        self._token: Any = None

    @classmethod
    def start(cls, agent: str, rollout_id: str) -> ScopeSpan | None:
        """Start one; None unless the user has configured a provider that records it."""
        trace = _trace()
        if trace is None:
            return None
        with faults.guard("otel"):
            span = trace.get_tracer("lightning_sdk").start_span(
                f"invoke_agent {agent}",
                attributes={
                    "gen_ai.operation.name": "invoke_agent",
                    "gen_ai.agent.name": agent,
                    "lightning.rollout_id": rollout_id,
                },
            )
            if span.is_recording():
                return cls(span)
        return None

    @property
    def ids(self) -> SpanIds:
        """Its ids."""
        with faults.guard("otel"):
            return _ids(self._span)
        return NO_SPAN

    def attach(self) -> None:
        """Make it the active span of this context, until `detach`."""
        trace = _trace()
        with faults.guard("otel"):
            self._token = sys.modules["opentelemetry.context"].attach(trace.set_span_in_context(self._span))

    def detach(self) -> None:
        """Make the span before it active again; in a foreign context nothing changes."""
        token, self._token = self._token, None
        with faults.guard("otel"):
            if token is not None and _trace().get_current_span() is self._span:
                sys.modules["opentelemetry.context"].detach(token)

    def end(self, outcome: OutcomeName, error: BaseException | None) -> None:
        """End it. The error's message stays out: it may hold what was never redacted."""
        with faults.guard("otel"):
            if outcome == "error":
                trace = _trace()
                self._span.set_attribute("error.type", type(error).__qualname__)
                self._span.set_status(trace.Status(trace.StatusCode.ERROR))
            self._span.end()


def _trace() -> Any:
    """The module opentelemetry.trace if it is loaded, and not just being imported by another thread."""
    module = sys.modules.get("opentelemetry.trace")
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def _ids(span: Any) -> SpanIds:
    context = span.get_span_context()
    if not context.is_valid:
        return NO_SPAN
    return SpanIds(context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"))
