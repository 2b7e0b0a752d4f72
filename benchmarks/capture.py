"""What recording adds to one non-streamed 2 KB chat call, in the agent's thread.

The openai client runs against an in-process transport, so that nothing but its own work and ours is timed.
Plain, recorded (to a real spool, no collector), and instrumented by opentelemetry-instrumentation-openai (with
an exporter that throws spans away) take turns in blocks within one process; the figures are medians of paired
differences, and the ratio is to the instrumentor's in the same run.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

BLOCKS = 40
CALLS_PER_BLOCK = 50
RESPONSE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "a sentence. " * 60},
        }
    ],
    "usage": {"prompt_tokens": 200, "completion_tokens": 150, "total_tokens": 350},
}


def make_client() -> Any:
    """An openai client whose transport answers at once."""
    import httpx2
    import openai

    body = json.dumps(RESPONSE).encode()
    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(200, content=body, headers={"content-type": "application/json"})
    )
    return openai.OpenAI(
        api_key="unused", base_url="http://mock/v1", http_client=httpx2.Client(transport=transport)
    )


def call_time_us(client: Any) -> float:
    """Mean time of one call over a block, in microseconds."""
    messages = [{"role": "user", "content": "a question. " * 60}]
    started = time.perf_counter()
    for _ in range(CALLS_PER_BLOCK):
        client.chat.completions.create(model="m", messages=messages)
    return (time.perf_counter() - started) / CALLS_PER_BLOCK * 1e6


def paired(client: Any, on: Callable[[], None], off: Callable[[], None]) -> tuple[float, float]:
    """Medians of the plain time and of the time that `on` adds, in microseconds."""
    plain, added = [], []
    for _ in range(BLOCKS):
        without = call_time_us(client)
        on()
        added.append(call_time_us(client) - without)
        off()
        plain.append(without)
    return statistics.median(plain), statistics.median(added)


def switch(instrument: Callable[[], None]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Put an instrumentor's wrapper on and off by hand: its own `uninstrument` leaves it in place."""
    from openai.resources.chat.completions import Completions

    original = Completions.create
    instrument()
    wrapped = Completions.create
    assert wrapped is not original
    Completions.create = original

    def set_to(value: Any) -> Callable[[], None]:
        return lambda: setattr(Completions, "create", value)

    return set_to(wrapped), set_to(original)


def main() -> None:
    """Measure and print."""
    import lightning_sdk as ls
    from lightning_sdk.client import integrations

    client = make_client()
    call_time_us(client)

    from opentelemetry import trace
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        """Takes spans and drops them."""

        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)

    ls.init(project="benchmark")
    with ls.rollout():
        integrations.uninstall_all()
        plain, ours = paired(client, lambda: integrations.select(None), integrations.uninstall_all)
    _, theirs = paired(client, *switch(OpenAIInstrumentor().instrument))
    print(f"uninstrumented call                     {plain:8.0f} µs")
    print(f"lightning_sdk, written to the spool     {ours:+8.0f} µs")
    print(f"opentelemetry-instrumentation-openai    {theirs:+8.0f} µs")
    print(f"ours / theirs                           {ours / theirs:8.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["LIGHTNING_HOME"] = home
        main()
