"""LangChain and AutoGen against the endpoint: a tool loop each, and a stream. `nox -s frameworks` installs them."""

from __future__ import annotations

from typing import Any

import pytest

from support.policy_fakes import scripted_policies, served

CALL_TEXT = '<tool_call>{"name": "calculator", "arguments": {"expression": "64+16"}}</tool_call>'


def _add(expression: str) -> str:
    return str(sum(map(int, expression.split("+"))))


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_calls_a_tool_and_reads_its_result(responses: bool) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def calculator(expression: str) -> str:
        """Works out a sum."""
        return _add(expression)

    policies, engine, _ = scripted_policies(CALL_TEXT, "It is 80.", "It is 80.")
    with served(policies) as url:
        model = ChatOpenAI(
            model="scripted", base_url=url, api_key="unused", max_retries=0, use_responses_api=responses
        ).bind_tools([calculator])
        messages: list[Any] = [HumanMessage("64+16?")]
        asked = model.invoke(messages)
        (call,) = asked.tool_calls
        assert (call["name"], call["args"]) == ("calculator", {"expression": "64+16"})
        messages += [asked, ToolMessage(calculator.invoke(call["args"]), tool_call_id=call["id"])]
        assert model.invoke(messages).text == "It is 80."
        assert "".join(chunk.text for chunk in model.stream(messages)) == "It is 80."
    assert engine.prompts[1].startswith(engine.prompts[0] + CALL_TEXT)
    assert "<result>80</result>" in engine.prompts[2]


@pytest.mark.parametrize("stream", [False, True])
async def test_autogen_calls_a_tool_and_reads_its_result(stream: bool) -> None:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    async def calculator(expression: str) -> str:
        """Works out a sum."""
        return _add(expression)

    policies, engine, _ = scripted_policies(CALL_TEXT, "It is 80.")
    with served(policies) as url:
        client = OpenAIChatCompletionClient(
            model="scripted",
            base_url=url,
            api_key="unused",
            max_retries=0,
            model_info={
                "vision": False,
                "function_calling": True,
                "json_output": False,
                "structured_output": False,
                "family": "unknown",
            },
        )
        agent = AssistantAgent(
            "solver",
            client,
            tools=[calculator],
            reflect_on_tool_use=True,
            model_client_stream=stream,
        )
        result = await agent.run(task="64+16?")
        await client.close()
    assert result.messages[-1].to_text() == "It is 80."
    assert "<result>80</result>" in engine.prompts[1]
