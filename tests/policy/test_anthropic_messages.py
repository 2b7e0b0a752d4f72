"""`/v1/messages` as the `anthropic` package sees it: blocks, tools, stop sequences, events and errors."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from lightning_sdk.mdp import assemble
from lightning_sdk.policy.harness import Harness
from lightning_sdk.records import SourcedRecord
from support.policy_fakes import END, scripted_policies, served

USER: Any = {"role": "user", "content": "64+16?"}
TOOL: Any = {"name": "calculator", "description": "Adds.", "input_schema": {"type": "object"}}
CALL_TEXT = 'Hm. <tool_call>{"name": "calculator", "arguments": {"expression": "64+16"}}</tool_call>'


def _client(url: str, rollout: str | None = None, api_key: str = "unused") -> Anthropic:
    base = url.removesuffix("/v1") + ("" if rollout is None else f"/r/{rollout}")
    return Anthropic(base_url=base, api_key=api_key, max_retries=0, timeout=20)


def test_an_answer_has_a_block_of_text_usage_and_a_reason_to_stop() -> None:
    policies, engine, writer = scripted_policies("80.")
    with served(policies) as url:
        answer = _client(url).messages.create(
            model="scripted",
            max_tokens=50,
            system=[{"type": "text", "text": "Be short."}],
            messages=[USER, {"role": "assistant", "content": "What?"}, USER],
            extra_body={"temperature": 0.5},
        )
    assert [(block.type, getattr(block, "text", None)) for block in answer.content] == [("text", "80.")]
    assert (answer.stop_reason, answer.usage.output_tokens, answer.model) == ("end_turn", 4, "scripted")
    assert engine.prompts[0].startswith("<|im_start|>system\nBe short.<|im_end|>")
    assert writer.records[0].tokens.response_id == answer.id
    assert (engine.params[0].temperature, engine.params[0].max_tokens) == (0.5, 50)


def test_why_it_stopped_is_told() -> None:
    policies, _, _ = scripted_policies("one. two", "abc")
    with served(policies) as url:
        create = _client(url).messages.create
        stopped = create(model="scripted", max_tokens=50, messages=[USER], stop_sequences=["zz", ". t"])
        cut = create(model="scripted", max_tokens=2, messages=[USER])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", ". t")
    assert stopped.content[0].text == "one"  # type: ignore[union-attr]
    assert (cut.stop_reason, cut.stop_sequence) == ("max_tokens", None)


def test_a_tool_is_used_and_its_result_comes_back_behind_what_was_sampled() -> None:
    policies, engine, _ = scripted_policies(CALL_TEXT, "80")
    asked: Any = {"model": "scripted", "max_tokens": 200, "tools": [TOOL]}
    with served(policies) as url:
        create = _client(url).messages.create
        first = create(messages=[USER], **asked)
        text, use = first.content
        assert (first.stop_reason, text.type, use.type) == ("tool_use", "text", "tool_use")
        assert (use.name, use.input) == ("calculator", {"expression": "64+16"})
        result: Any = {
            "type": "tool_result",
            "tool_use_id": use.id,
            "content": [{"type": "text", "text": "80"}],
        }
        create(
            messages=[
                USER,
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ],
            **asked,
        )
    assert engine.prompts[1].startswith(engine.prompts[0] + CALL_TEXT)
    assert "<result>80</result>" in engine.prompts[1]


@pytest.mark.parametrize("script", ["Grüße €", CALL_TEXT, CALL_TEXT[4:] * 2, ""])
def test_a_stream_says_what_the_whole_answer_says(script: str) -> None:
    policies, _, _ = scripted_policies(script, script)
    asked: Any = {"model": "scripted", "max_tokens": 400, "messages": [USER], "tools": [TOOL]}
    with served(policies) as url:
        client = _client(url)
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_message()
    drop = {"id", "parsed_output"}
    said = [
        [block.model_dump(exclude=drop, exclude_none=True) for block in message.content]
        for message in (whole, streamed)
    ]
    assert said[0] == said[1]
    assert (whole.stop_reason, whole.usage.output_tokens) == (
        streamed.stop_reason,
        streamed.usage.output_tokens,
    )
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_refusals_are_the_clients_own_errors() -> None:
    policies, engine, _ = scripted_policies()
    with served(policies, token="sesame") as url:
        with pytest.raises(anthropic.AuthenticationError):
            _client(url).messages.create(model="scripted", max_tokens=5, messages=[USER])
        create = _client(url, api_key="sesame").messages.create
        with pytest.raises(anthropic.NotFoundError, match="does not exist") as unknown:
            create(model="claude", max_tokens=5, messages=[USER])
        assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        asked: Any = {"model": "scripted", "max_tokens": 5}
        for wrong in (
            {"tool_choice": {"type": "any"}, "tools": [TOOL], "messages": [USER]},
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "messages": [USER]},
            {"messages": [USER, {"role": "assistant", "content": "The answer is"}]},
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}, "messages": [USER]},
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        ):
            with pytest.raises(anthropic.BadRequestError):
                create(**asked, **wrong)
        engine.full = True
        for stream in (False, True):
            with pytest.raises(anthropic.RateLimitError):
                create(**asked, messages=[USER], stream=stream)


def test_a_format_is_passed_on_to_an_engine_that_can_follow_it() -> None:
    policies, engine, _ = scripted_policies("{}")
    engine.constrains, engine.shapes = True, frozenset({"top_k"})
    with served(policies) as url:
        _client(url).messages.create(
            model="scripted",
            max_tokens=9,
            messages=[USER],
            output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
            extra_body={"top_k": 3},
        )
    constraint = engine.params[0].constraint
    assert constraint is not None
    assert constraint.schema == {"type": "object"}
    assert engine.params[0].shaping == {"top_k": 3}


def test_an_engine_that_fails_in_a_stream_is_an_error_there() -> None:
    policies, engine, _ = scripted_policies("ab")
    engine.failure = RuntimeError("no")
    with served(policies) as url:
        stream = _client(url).messages.create(model="scripted", max_tokens=9, messages=[USER], stream=True)
        with pytest.raises(anthropic.APIStatusError, match="the engine failed"):
            list(stream)


@pytest.mark.parametrize("stream", [False, True])
def test_in_harness_mode_a_call_becomes_a_transition_with_its_tokens(stream: bool) -> None:
    policies, _, writer = scripted_policies("ok")
    with served(policies, harness=Harness(writer)) as url:
        answer = _client(url, "r").messages.create(
            model="claude-x", max_tokens=9, messages=[USER], stream=stream
        )
        if stream:
            list(answer)
    records = [SourcedRecord(b"p" * 16, place, record) for place, record in enumerate(writer.records, 1)]
    (transition,) = assemble(records)[0].transitions
    assert (transition.fidelity, transition.drop_reason) == ("engine", None)
    assert list(transition.response_token_ids or ()) == [*b"ok", END]
    assert transition.observation["messages"] == [USER]
