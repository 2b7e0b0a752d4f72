"""`/v1/completions` as the `openai` package sees it: text or token ids go in, and are gone on from."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from lightning_sdk.mdp import assemble
from lightning_sdk.policy.harness import Harness
from lightning_sdk.records import SourcedRecord, unpack_int32
from support.policy_fakes import END, START, scripted_policies, served


def _client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=20)


@pytest.mark.parametrize("prompt", ["<|im_start|>ab", [START, 97, 98], ["<|im_start|>ab"], [[START, 97, 98]]])
def test_a_prompt_of_text_or_ids_is_gone_on_from_as_it_is(prompt: Any) -> None:
    policies, engine, writer = scripted_policies("cd")
    with served(policies) as url:
        answer = _client(url).completions.create(model="scripted", prompt=prompt, n=2, max_tokens=9)
    assert [(each.index, each.text, each.finish_reason) for each in answer.choices] == [
        (0, "cd", "stop"),
        (1, "cd", "stop"),
    ]
    assert engine.prompts == ["<|im_start|>ab"]
    tokens = writer.records[0].tokens
    assert tokens.response_id == answer.id
    assert list(unpack_int32(tokens.prompt_token_ids)) == [START, 97, 98]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 6)


def test_a_stream_says_what_the_whole_answer_says() -> None:
    policies, _, _ = scripted_policies("one. two", "one. two")
    asked: Any = {
        "model": "scripted",
        "prompt": "x",
        "stop": ". t",
        "logprobs": 1,
        "extra_body": {"return_token_ids": True},
    }
    with served(policies) as url:
        create = _client(url).completions.create
        whole: Any = create(**asked).choices[0]
        chunks: Any = list(create(**asked, stream=True, stream_options={"include_usage": True}))
    parts = [chunk.choices[0] for chunk in chunks[:-1]]
    assert "".join(part.text for part in parts) == whole.text == "one"
    assert [token for part in parts for token in part.token_ids] == whole.token_ids == [*b"one. t"]
    assert [each for part in parts for each in part.logprobs.text_offset] == [0, 1, 2, 3, 4, 5]
    assert whole.logprobs.token_logprobs[:2] == [-0.5, -1.5]
    assert whole.logprobs.tokens == list("one. t")
    assert (parts[-1].finish_reason, chunks[-1].usage.completion_tokens) == ("stop", 6)
    assert parts[0].prompt_token_ids == whole.prompt_token_ids == [120]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "!"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 258]}, "prompt"),
        ({"prompt": [-1]}, None),
    ],
)
def test_what_cannot_be_honoured_is_refused(wrong: Any, param: str | None) -> None:
    policies, engine, _ = scripted_policies()
    with served(policies) as url, pytest.raises(openai.BadRequestError) as refused:
        _client(url).completions.create(**{"model": "scripted", "prompt": "x", **wrong})
    assert param is None or refused.value.param == param
    assert engine.prompts == []


@pytest.mark.parametrize("stream", [False, True])
def test_in_harness_mode_a_call_becomes_a_transition_with_its_tokens(stream: bool) -> None:
    policies, _, writer = scripted_policies("ok")
    with served(policies, harness=Harness(writer)) as url:
        client = _client(url.replace("/v1", "/r/r-1/v1"))
        answer = client.completions.create(model="any", prompt="hi", stream=stream)
        if stream:
            list(answer)
    records = [SourcedRecord(b"p" * 16, place, record) for place, record in enumerate(writer.records, 1)]
    (transition,) = assemble(records)[0].transitions
    assert (transition.fidelity, transition.drop_reason) == ("engine", None)
    assert list(transition.response_token_ids or ()) == [*b"ok", END]
