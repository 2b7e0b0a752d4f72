"""`/v1/responses` as the `openai` package and the Agents SDK see it: items, events, tools and refusals."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from lightning_sdk.mdp import assemble
from lightning_sdk.policy.harness import Harness
from lightning_sdk.records import SourcedRecord
from support.policy_fakes import END, scripted_policies, served

TOOL: Any = {
    "type": "function",
    "name": "calculator",
    "description": "Adds.",
    "parameters": {"type": "object"},
    "strict": False,
}
CALL_TEXT = 'Hm. <tool_call>{"name": "calculator", "arguments": {"expression": "64+16"}}</tool_call>'


def _client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=20)


def test_an_answer_is_a_message_with_usage() -> None:
    policies, engine, writer = scripted_policies("80.")
    with served(policies) as url:
        answer = _client(url).responses.create(
            model="scripted", input="64+16?", instructions="Be short.", store=True, max_output_tokens=9
        )
    assert (answer.output_text, answer.status, answer.model) == ("80.", "completed", "scripted")
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4
    assert engine.prompts[0].startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n64+16?")
    assert writer.records[0].tokens.response_id == answer.id


def test_an_answer_that_was_cut_is_incomplete() -> None:
    policies, _, _ = scripted_policies("abc")
    with served(policies) as url:
        answer = _client(url).responses.create(model="scripted", input="x", max_output_tokens=2)
    assert (answer.status, answer.output_text) == ("incomplete", "ab")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_a_function_is_called_and_its_output_comes_back_behind_what_was_sampled() -> None:
    policies, engine, _ = scripted_policies(CALL_TEXT, "80")
    with served(policies) as url:
        create = _client(url).responses.create
        first = create(model="scripted", input="64+16?", tools=[TOOL])
        message, call = first.output
        assert (message.type, call.type) == ("message", "function_call")
        assert (call.name, call.arguments) == ("calculator", '{"expression": "64+16"}')
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "80"}
        said: list[Any] = [item.model_dump() for item in first.output]
        user: Any = {"role": "user", "content": [{"type": "input_text", "text": "64+16?"}]}
        create(model="scripted", input=[user, *said, result], tools=[TOOL])
    assert engine.prompts[1].startswith(engine.prompts[0] + CALL_TEXT)
    assert "<result>80</result>" in engine.prompts[1]


@pytest.mark.parametrize("script", ["Grüße €", CALL_TEXT, CALL_TEXT[4:] * 2, ""])
def test_a_stream_says_what_the_whole_answer_says(script: str) -> None:
    policies, _, _ = scripted_policies(script, script)
    asked: Any = {"model": "scripted", "input": "64+16?", "tools": [TOOL]}
    with served(policies) as url:
        client = _client(url)
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            events = list(stream)
            streamed = stream.get_final_response()
    ids = {"id", "call_id", "parsed", "parsed_arguments"}
    said = [
        [item.model_dump(exclude={*ids, "content"}) | {"text": answer.output_text} for item in answer.output]
        for answer in (whole, streamed)
    ]
    assert said[0] == said[1]
    assert whole.usage == streamed.usage
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_log_probabilities_come_where_they_are_included() -> None:
    policies, _, _ = scripted_policies("a")
    with served(policies) as url:
        answer = _client(url).responses.create(
            model="scripted", input="x", include=["message.output_text.logprobs"], top_logprobs=1
        )
    part: Any = answer.output[0].content[0]  # type: ignore[union-attr]
    assert [(each.token, each.logprob) for each in part.logprobs] == [("a", -0.5), ("<|im_end|>", -1.5)]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"tool_choice": "required", "tools": [TOOL]}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, None),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, None),
    ],
)
def test_what_cannot_be_honoured_is_refused(wrong: Any, param: str | None) -> None:
    policies, _, _ = scripted_policies()
    with served(policies) as url, pytest.raises(openai.BadRequestError) as refused:
        _client(url).responses.create(**{"model": "scripted", "input": "x", **wrong})
    assert param is None or refused.value.param == param


def test_a_format_is_passed_on_to_an_engine_that_can_follow_it_and_marked() -> None:
    policies, engine, writer = scripted_policies("{}")
    engine.constrains = True
    wanted: Any = {
        "format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    }
    with served(policies) as url:
        answer = _client(url).responses.create(model="scripted", input="x", text=wanted)
    assert answer.output_text == "{}"
    constraint = engine.params[0].constraint
    assert constraint is not None
    assert (constraint.kind, constraint.schema) == ("json_schema", {"type": "object"})
    assert json.loads(writer.records[0].tokens.sampling_effective)["constrained"] == "json_schema"


def test_an_engine_that_fails_in_a_stream_is_an_error_there() -> None:
    policies, engine, _ = scripted_policies("ab")
    engine.failure = RuntimeError("no")
    with served(policies) as url:
        stream = _client(url).responses.create(model="scripted", input="x", stream=True)
        with pytest.raises(openai.APIError, match="the engine failed"):
            list(stream)


@pytest.mark.parametrize("stream", [False, True])
def test_in_harness_mode_a_call_becomes_a_transition_with_its_tokens(stream: bool) -> None:
    policies, _, writer = scripted_policies("ok")
    with served(policies, harness=Harness(writer)) as url:
        client = _client(url.replace("/v1", "/r/r-1/v1"))
        answer = client.responses.create(model="gpt-9", input="hi", stream=stream)
        if stream:
            list(answer)
    records = [SourcedRecord(b"p" * 16, place, record) for place, record in enumerate(writer.records, 1)]
    (transition,) = assemble(records)[0].transitions
    assert (transition.fidelity, transition.drop_reason) == ("engine", None)
    assert list(transition.response_token_ids or ()) == [*b"ok", END]


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_agents_sdk_runs_a_tool_loop(streamed: bool) -> None:
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def calculator(expression: str) -> str:
        """Works out a sum."""
        return str(sum(map(int, expression.split("+"))))

    policies, engine, _ = scripted_policies(CALL_TEXT, "It is 80.")
    with served(policies) as url:
        async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
            model = agents.OpenAIResponsesModel(model="scripted", openai_client=client)
            agent = agents.Agent(name="solver", instructions="Add.", model=model, tools=[calculator])
            if streamed:
                result = agents.Runner.run_streamed(agent, "64+16?")
                async for _ in result.stream_events():
                    pass
            else:
                result = await agents.Runner.run(agent, "64+16?")
    assert result.final_output == "It is 80."
    assert "<result>80</result>" in engine.prompts[1]
