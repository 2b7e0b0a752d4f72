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

# In a context in which we attached a span: the context before that.
_BEFORE = "lightning-before"


def active_ids() -> SpanIds:
    """Ids of the span that is active in this context."""
    trace = _trace()
    if trace is None:
        return NO_SPAN
    with faults.guard("otel"):
        return _ids(trace.get_current_span())
    return NO_SPAN


class ScopeSpan:
    """One scope as a span ``invoke_agent NAME``. It is attached only while the scope's code runs.

    By value, never by token: the code of a generator may leave contexts of its own attached when it yields,
    and detach them at a later step, also after another has been attached around it. What it left is left
    alone; wherever our span would show outside the code, what stood in its place shows instead.
    """

    __slots__ = ("_left", "_ours", "_span")

    def __init__(self, span: Any) -> None:
        self._span = span
        # The context in which our span was attached last, and the one that the code itself left attached.
        self._ours: Any = None
        self._left: Any = None

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
        trace, context = _trace(), sys.modules["opentelemetry.context"]
        with faults.guard("otel"):
            before, (left, self._left) = context.get_current(), (self._left, None)
            if before is left:
                # The code goes on in what it left: in a span of its own, which is inside ours.
                return
            self._ours = context.set_value(_BEFORE, before, trace.set_span_in_context(self._span, before))
            context.attach(self._ours)

    def detach(self) -> None:
        """Make what was before it active again. In a foreign context nothing changes."""
        trace, context = _trace(), sys.modules["opentelemetry.context"]
        with faults.guard("otel"):
            current = context.get_current()
            if trace.get_current_span(current) is not self._span:
                self._left = current
                return
            before = context.get_value(_BEFORE, current)
            if current is not self._ours:
                # The code left values of its own beside our span: they stay, and our span goes.
                before = trace.set_span_in_context(trace.get_current_span(before), current)
            context.attach(before)

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
