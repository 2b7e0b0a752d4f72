"""Episodes as a round has them, made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from lightning_sdk.mdp import Episode, Group, RewardEvent, Transition

_serial = itertools.count()


def transition(
    *,
    agent: str = "writer",
    policy: str | None = "mine",
    version: int = 0,
    tokens: int = 2,
    reward: float | None = 0.0,
    prompt: str = "?",
    content: str = "!",
) -> Transition:
    serial = next(_serial)
    return Transition(
        project="p",
        run_id="run",
        group_id="g",
        rollout_id="ro",
        task_id="t",
        attempt=1,
        agent=agent,
        invocation_id=None,
        step=0,
        call_id=f"ca_{serial}",
        choice=0,
        parent_call_id=None,
        next_call_id=None,
        order="causal",
        model="m",
        policy=policy,
        policy_version=version if policy else None,
        policy_version_end=version if policy else None,
        fidelity="engine" if policy else "text",
        start_ns=serial,
        end_ns=serial,
        observation={"messages": [{"role": "user", "content": prompt}]},
        sampling={},
        logprobs_mode="processed",
        action={"message": {"role": "assistant", "content": content}, "finish_reason": "stop"},
        prompt_token_ids=[0] if policy else None,
        response_token_ids=list(range(tokens)) if policy else None,
        response_logprobs=[-1.0] * tokens if policy else None,
        reward=reward,
        reward_components=None,
        reward_scopes=None,
        return_to_go=None,
        terminated=True,
        truncated=False,
        truncation_reason=None,
        outcome="succeeded",
        drop_reason=None,
        split="train",
        metadata={},
    )


def episode(*transitions: Transition, components: Mapping[str, float] | None = None) -> Episode:
    """One rollout; without `components` it has no reward."""
    rewards = [
        RewardEvent(
            reward_id=None,
            value=sum(components.values()),
            components=components,
            bound="rollout",
            call_id=None,
            choice=None,
            scope_id=None,
            order=0,
            time_ns=0,
        )
        for components in ([components] if components is not None else [])
    ]
    return Episode(
        rollout_id=f"ro_{next(_serial)}",
        project="p",
        run_id="run",
        group_id="g",
        task_id="t",
        split="train",
        attempt=1,
        outcome="succeeded",
        error=None,
        start_ns=0,
        end_ns=1,
        complete=True,
        metadata={},
        transitions=transitions,
        scopes=[],
        tools=[],
        rewards=rewards,
        return_=sum(components.values()) if components is not None else None,
    )


def group(*episodes: Episode) -> Group:
    return Group(group_id="g", episodes=episodes)
