"""The agent: it asks the model, looks up what the model wants to search for, and asks again for the answer.

It knows the openai package; what is added are the decorators and the reward.
"""

from __future__ import annotations

from functools import cache

from openai import OpenAI

import lightning_sdk as ls


@cache
def client() -> OpenAI:
    """The agent's own model is somewhere else: in training its calls are routed to the policy that learns."""
    return OpenAI(base_url="http://127.0.0.1:9/v1", api_key="unused")


@ls.trace_tool
def search(key: str, task: dict[str, str]) -> str:
    """What is known of a key: the value of the one that the task is about, nothing of others."""
    return f"{key} = {task['value']}" if key == task["key"] else "error"


@ls.trace_agent
def solve(task: dict[str, str]) -> float:
    """Answer which value the task's key has, with at most one search. Right gives 1, all else 0."""
    messages = [{"role": "user", "content": f"what is {task['key']} ?"}]
    said = _ask(messages).split()
    if len(said) == 2 and said[0] == "search":
        messages += [
            {"role": "assistant", "content": " ".join(said)},
            {"role": "user", "content": search(said[1], task)},
        ]
        said = _ask(messages).split()
    reward = float(said == ["answer", task["value"]])
    ls.emit_reward(reward)
    return reward


def _ask(messages: list[dict[str, str]]) -> str:
    completion = client().chat.completions.create(
        model="any",
        messages=messages,  # type: ignore[arg-type]
        max_tokens=4,
    )
    return completion.choices[0].message.content or ""
