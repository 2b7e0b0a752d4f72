"""The agent: it goes on asking the model until that answers, so that rollouts of one task differ in turns."""

from __future__ import annotations

from functools import cache
from typing import Any

from openai import OpenAI

import lightning_sdk as ls

MOST_CALLS = 6


@cache
def client() -> OpenAI:
    """The agent's own model is somewhere else: in training its calls are routed to the policy that learns."""
    return OpenAI(base_url="http://127.0.0.1:9/v1", api_key="unused")


@ls.trace_tool
def search(key: str, found: str | None) -> str:
    """What is known of a key: that which the agent has to search for next, and nothing of others."""
    return "error" if found is None else f"{key} = {found}"


@ls.trace_agent
def solve(task: dict[str, Any]) -> float:
    """Follow the chain of keys to its value, in six calls at most. Right gives 1, all else 0."""
    chain: list[str] = task["chain"]
    messages = [{"role": "user", "content": f"what is {chain[0]} ?"}]
    at, reward = 0, 0.0
    for _ in range(MOST_CALLS):
        said = _ask(messages)
        if len(said) != 2 or said[0] != "search":
            reward = float(said == ["answer", chain[-1]])
            break
        is_next = at < len(chain) - 1 and said[1] == chain[at]
        result = search(said[1], chain[at + 1] if is_next else None)
        at += is_next
        messages += [
            {"role": "assistant", "content": " ".join(said)},
            {"role": "user", "content": result},
        ]
    ls.emit_reward(reward)
    return reward


def _ask(messages: list[dict[str, str]]) -> list[str]:
    completion = client().chat.completions.create(
        model="any",
        messages=messages,  # type: ignore[arg-type]
        max_tokens=4,
    )
    return (completion.choices[0].message.content or "").split()
