"""A deadline that the agent's signal handler raises in the middle of the integration reaches the agent."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

import lightning_sdk as ls
from lightning_sdk.testing import capture
from support.interruptions import swallowed_at

ASK: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "Is it raining?"}]}
CHOICE = {"index": 0, "finish_reason": "stop"}
COMMON = {"id": "c-1", "created": 0, "model": "fake"}
ANSWER = {
    **COMMON,
    "object": "chat.completion",
    "choices": [{**CHOICE, "message": {"role": "assistant", "content": "No"}}],
}
CHUNK = {
    **COMMON,
    "object": "chat.completion.chunk",
    "choices": [{**CHOICE, "delta": {"role": "assistant", "content": "No"}}],
}


@pytest.fixture(autouse=True)
def _as_users_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LIGHTNING_STRICT", "0")
    gc.disable()
    yield
    gc.enable()


def answer(request: httpx2.Request) -> httpx2.Response:
    """In this process: a server's own thread would not be interrupted, but the SDK's waiting for it would."""
    if json.loads(request.content).get("stream"):
        body = f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n".encode()
        return httpx2.Response(200, content=body, headers={"content-type": "text/event-stream"})
    return httpx2.Response(200, json=ANSWER)


@pytest.mark.parametrize("reading", ["whole", "stream", "raw response"])
def test_a_deadline_at_any_place_of_the_integration_reaches_the_agent(reading: str) -> None:
    transport = httpx2.MockTransport(answer)
    client = openai.OpenAI(
        api_key="test",
        base_url="http://mock/v1",
        http_client=httpx2.Client(transport=transport),
        max_retries=0,
    )

    @ls.trace_agent
    def ask() -> None:
        completions = client.chat.completions
        if reading == "whole":
            completions.create(**ASK)
        elif reading == "stream":
            for _ in completions.create(**ASK, stream=True):
                pass
        else:
            with completions.with_streaming_response.create(**ASK) as response:
                response.read()

    with capture() as cap:
        ask()
        places, swallowed = swallowed_at(ask)
    assert cap.calls[0].outcome == "ok"
    assert places > 40
    assert swallowed == []
