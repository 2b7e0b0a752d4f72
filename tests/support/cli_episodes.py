"""Episodes by hand, for tests of what the command line prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_sdk.mdp import CallView, Episode, RewardEvent, ScopeSpan, ToolEvent, Transition

# 2001-09-09 01:46:40 UTC: never today, so the whole date is printed.
START_NS = 1_000_000_000 * 10**9
MS = 10**6


def at(milliseconds: int) -> int:
    """A moment after START_NS."""
    return START_NS + milliseconds * MS


def transition(**fields: Any) -> Transition:
    """A transition of a rollout that had no reward and went on."""
    defaults: dict[str, Any] = {
        "project": "default",
        "run_id": "run_" + "a" * 32,
        "group_id": "group",
        "rollout_id": "ro_" + "1" * 32,
        "task_id": "math-17",
        "attempt": 1,
        "agent": "solve",
        "invocation_id": "sc_1",
        "step": 0,
        "call_id": "ca_0",
        "choice": 0,
        "parent_call_id": None,
        "next_call_id": None,
        "order": "causal",
        "model": "tiny-model",
        "policy": None,
        "policy_version": None,
        "policy_version_end": None,
        "fidelity": "text",
        "start_ns": at(0),
        "end_ns": at(100),
        "observation": {"messages": [{"role": "user", "content": "What is 12 * 7?"}]},
        "sampling": {"requested": None, "effective": None},
        "logprobs_mode": None,
        "action": {"message": {"role": "assistant", "content": "84"}, "finish_reason": "stop"},
        "prompt_token_ids": None,
        "response_token_ids": None,
        "response_logprobs": None,
        "reward": None,
        "reward_components": None,
        "reward_scopes": None,
        "return_to_go": None,
        "terminated": False,
        "truncated": False,
        "truncation_reason": None,
        "outcome": "succeeded",
        "drop_reason": None,
        "split": None,
        "metadata": {},
    }
    return Transition(**{**defaults, **fields})


def episode(**fields: Any) -> Episode:
    """A succeeded episode of two seconds in which nothing happened."""
    defaults: dict[str, Any] = {
        "rollout_id": "ro_" + "1" * 32,
        "project": "default",
        "run_id": "run_" + "a" * 32,
        "group_id": "group",
        "task_id": "math-17",
        "split": None,
        "attempt": 1,
        "outcome": "succeeded",
        "error": None,
        "start_ns": at(0),
        "end_ns": at(2000),
        "complete": True,
        "metadata": {},
        "transitions": [],
        "scopes": [],
        "tools": [],
        "rewards": [],
        "return_": None,
    }
    return Episode(**{**defaults, **fields})


def scope(scope_id: str, agent: str, **fields: Any) -> ScopeSpan:
    """An outermost scope that lasted two seconds."""
    defaults: dict[str, Any] = {
        "parent_scope_id": None,
        "order": 1,
        "start_ns": at(0),
        "end_ns": at(2000),
        "outcome": "ok",
        "error": None,
    }
    return ScopeSpan(scope_id=scope_id, agent=agent, **{**defaults, **fields})


def tool(name: str, **fields: Any) -> ToolEvent:
    """A tool that took three milliseconds and worked."""
    defaults: dict[str, Any] = {
        "tool_call_id": "tc_1",
        "agent": "solve",
        "scope_id": "sc_1",
        "order": 3,
        "start_ns": at(200),
        "end_ns": at(203),
        "arguments": {},
        "result": None,
        "outcome": "ok",
        "error": None,
    }
    return ToolEvent(name=name, **{**defaults, **fields})


def reward(value: float, **fields: Any) -> RewardEvent:
    """A reward without components, bound to the latest call of its scope."""
    defaults: dict[str, Any] = {
        "reward_id": None,
        "components": {"": value},
        "bound": "scope",
        "call_id": "ca_0",
        "choice": None,
        "scope_id": "sc_1",
        "order": 9,
        "time_ns": at(1900),
    }
    return RewardEvent(value=value, **{**defaults, **fields})


def call_view(call_id: str, usage: Mapping[str, Any] | None = None, **fields: Any) -> CallView:
    """What is known of a call beside its transitions."""
    defaults: dict[str, Any] = {
        "response_id": None,
        "rollout_id": "ro_" + "1" * 32,
        "scope_id": "sc_1",
        "integration": "openai",
        "api": "chat.completions",
        "agent": "solve",
        "url": "https://api.example/v1/chat/completions",
        "model": "tiny-model",
        "request": None,
        "response": None,
        "request_bytes": b"",
        "outcome": "ok",
        "error": None,
        "attempts": 1,
        "status": 200,
        "streamed": False,
        "prompt_token_ids": None,
        "choices": (),
        "policy": None,
        "policy_version": None,
        "policy_version_end": None,
        "fidelity": "text",
        "sampling": {"requested": None, "effective": None},
        "logprobs_mode": None,
        "problem": None,
        "producer": b"p" * 16,
        "seq": 1,
        "order": 1,
        "start_ns": at(0),
        "end_ns": at(100),
    }
    return CallView(call_id=call_id, usage=usage, **{**defaults, **fields})
