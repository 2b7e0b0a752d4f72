"""Agents for the bandit: each asks for a letter, and is rewarded where it is the right one."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import openai

import lightning_sdk as ls


@cache
def _client() -> openai.OpenAI:
    # Routing sends the calls to the policy endpoint: what is said here leads nowhere.
    return openai.OpenAI(base_url="http://127.0.0.1:1/v1", api_key="unused", max_retries=0)


@ls.trace_agent
def guess(task: dict[str, Any]) -> str:
    """Right is `task["right"]`."""
    completion = _client().chat.completions.create(
        model="elsewhere", messages=[{"role": "user", "content": task["question"]}], temperature=0
    )
    answer = completion.choices[0].message.content or ""
    ls.emit_reward(float(answer == task["right"]))
    return answer


@ls.trace_agent
def guess_slowly(task: dict[str, Any]) -> str:
    """As `guess`, but some tasks take a while."""
    time.sleep(task.get("seconds", 0))
    return guess(task)


@ls.trace_agent
def troubled(task: dict[str, Any]) -> None:
    """Raises, hangs, calls nobody or forgets the reward, as the task says."""
    trouble = task.get("trouble")
    if trouble == "raise":
        raise ValueError("the agent does not like this task")
    if trouble == "hang":
        time.sleep(3600)
    if trouble == "silent":
        ls.emit_reward(1.0)
        return
    guess(task)


@ls.trace_agent
def unrewarded(task: dict[str, Any]) -> None:
    """Calls the policy, and nobody says how good that was."""
    _client().chat.completions.create(model="elsewhere", messages=[{"role": "user", "content": "?"}])
