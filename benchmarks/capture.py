"""What recording adds to one non-streamed 2 KB chat call, in the agent's thread.

The openai client runs against an in-process transport, so that nothing but its own work and ours is timed.
Plain, recorded (to a real spool, no collector), and instrumented by opentelemetry-instrumentation-openai (with
an exporter that throws spans away) take turns in short blocks within one process; the figures are medians of
paired differences, and the ratio is to the instrumentor's in the same run. Time is the thread's own CPU time,
writing to the spool included, so that other programs do not count; the garbage collector looks at new objects
only.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

BLOCKS = 120
CALLS_PER_BLOCK = 25
# A patched class is slow at first, since the interpreter forgets what it knew of its methods.
WARM_UP_CALLS = 10
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
    """Mean CPU time of one call over a block, in microseconds."""
    messages = [{"role": "user", "content": "a question. " * 60}]
    for _ in range(WARM_UP_CALLS):
        client.chat.completions.create(model="m", messages=messages)
    started = time.thread_time()
    for _ in range(CALLS_PER_BLOCK):
        client.chat.completions.create(model="m", messages=messages)
    return (time.thread_time() - started) / CALLS_PER_BLOCK * 1e6


def paired(client: Any, on: Callable[[], None], off: Callable[[], None]) -> tuple[float, float]:
    """Medians of the plain time and of the time that `on` adds, in microseconds."""
    plain, added = [], []
    gc.collect()
    gc.freeze()
    for _ in range(BLOCKS):
        before = call_time_us(client)
        on()
        with_it = call_time_us(client)
        off()
        # Between two plain blocks, so that a clock that slows down or speeds up is on neither side.
        without = (before + call_time_us(client)) / 2
        added.append(with_it - without)
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
