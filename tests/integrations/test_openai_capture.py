"""The OpenAI integration through `lightning_sdk.testing.capture`: what a user's own test sees."""

from __future__ import annotations

from typing import Any

import openai
import pytest

import lightning_sdk as ls
from lightning_sdk.testing import capture
from support.fake_openai import PROMPT_TOKEN_IDS, FakeOpenAI, Reply

ASK: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "Is it raining?"}]}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_of_an_agent_is_captured_with_its_tokens(streamed: bool) -> None:
    with FakeOpenAI([Reply("It may rain")]) as server:

        @ls.trace_agent
        def forecaster() -> None:
            with openai.OpenAI(base_url=server.base_url, api_key="test") as client:
                extra = {"return_token_ids": True}
                answer: Any = client.chat.completions.create(
                    **ASK, logprobs=True, stream=streamed, extra_body=extra
                )
                if streamed:
                    list(answer)

        with capture() as captured:
            forecaster()

    (call,) = captured.calls
    assert (call.agent, call.outcome, call.streamed, call.attempts) == ("forecaster", "ok", streamed, 1)
    assert call.request_bytes == server.exchanges[0].request
    assert call.prompt_token_ids is not None
    assert list(call.prompt_token_ids) == list(PROMPT_TOKEN_IDS)
    (choice,) = call.choices
    assert choice.message["content"] == "It may rain"
    assert choice.token_ids is not None
    assert list(choice.token_ids) == [100, 101, 102, 2]
    assert choice.logprobs is not None
    assert list(choice.logprobs) == [-0.5, -1.0, -1.5, -2.0]
    assert choice.finish_reason == "stop"


def test_nothing_stays_patched_after_a_capture() -> None:
    before = vars(openai.OpenAI.__mro__[1])["request"]
    with capture():
        assert vars(openai.OpenAI.__mro__[1])["request"] is not before

    assert vars(openai.OpenAI.__mro__[1])["request"] is before
