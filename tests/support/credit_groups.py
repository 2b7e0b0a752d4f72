"""Groups of rollouts, written tersely: what a credit or baseline needs, with everything else at rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_sdk.mdp import Episode, Group, RewardEvent, ScopeSpan, Transition
from lightning_sdk.mdp.rewards import exact_sum


@dataclass(kw_only=True)
class MadeCall:
    """One call with one choice, or a further choice of the call before."""

    reward: float = 0.0
    agent: str | None = "solver"
    tokens: int = 2
    scope: str | None = None
    further_choice: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


def call(reward: float = 0.0, agent: str | None = "solver", **fields: Any) -> MadeCall:
    own = {name: fields.pop(name) for name in ("tokens", "scope", "further_choice") if name in fields}
    return MadeCall(reward=reward, agent=agent, fields=fields, **own)


def rollout(
    rollout_id: str,
    *calls: MadeCall,
    extra: float | None = None,
    outcome: str = "succeeded",
    truncated: bool = False,
    rewarded: bool = True,
    scopes: Sequence[tuple[str, str | None]] = (),
    scope_rewards: Sequence[tuple[str | None, float]] = (),
) -> Episode:
    """A rollout; call k of rollout "r" is "r.k", its state (for state_key) is metadata of its observation.

    `extra` is a reward that found no call. `scope_rewards` are emitted in a scope (None: the rollout) and found none.
    """
    events = [
        _event(made.reward, f"{rollout_id}.{at}", made.scope) for at, made in enumerate(calls) if made.reward
    ]
    if extra is not None:
        events.append(_event(extra, None, None))
    events += [_event(value, None, scope) for scope, value in scope_rewards]
    steps: list[int] = []
    for made in calls:
        steps.append((steps[-1] if steps else -1) + (0 if made.further_choice and steps else 1))
    transitions = [
        _transition(rollout_id, made, at, steps, rewarded, truncated, outcome)
        for at, made in enumerate(calls)
    ]
    return Episode(
        rollout_id=rollout_id,
        project="demo",
        run_id="run_1",
        group_id="g",
        task_id="task",
        split=None,
        attempt=1,
        outcome=outcome,  # type: ignore[arg-type]
        error=None,
        start_ns=0,
        end_ns=1,
        complete=True,
        metadata={},
        transitions=transitions,
        scopes=[_scope(scope, parent) for scope, parent in scopes],
        tools=[],
        rewards=events if rewarded else [],
        return_=exact_sum(event.value for event in events) if rewarded else None,
    )


def group(*episodes: Episode, group_id: str = "g") -> Group:
    return Group(group_id=group_id, episodes=episodes)


def _transition(
    rollout_id: str,
    made: MadeCall,
    at: int,
    steps: Sequence[int],
    rewarded: bool,
    truncated: bool,
    outcome: str,
) -> Transition:
    first = steps.index(steps[at])
    last = steps[at] == steps[-1]
    values: dict[str, Any] = {
        "project": "demo",
        "run_id": "run_1",
        "group_id": "g",
        "rollout_id": rollout_id,
        "task_id": "task",
        "attempt": 1,
        "agent": made.agent,
        "invocation_id": made.scope,
        "step": steps[at],
        "call_id": f"{rollout_id}.{first}",
        "choice": at - first,
        "parent_call_id": None,
        "next_call_id": None if last else f"{rollout_id}.{at + 1}",
        "order": "causal",
        "model": "tiny",
        "policy": "tiny",
        "policy_version": 0,
        "policy_version_end": 0,
        "fidelity": "engine",
        "start_ns": at,
        "end_ns": at + 1,
        "observation": {"messages": []},
        "sampling": {"requested": None, "effective": None},
        "logprobs_mode": None,
        "action": {"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"},
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": list(range(made.tokens)),
        "response_logprobs": [0.0] * made.tokens,
        "reward": made.reward if rewarded else None,
        "reward_components": {} if rewarded else None,
        "reward_scopes": {} if rewarded else None,
        "return_to_go": None,
        "terminated": last and not truncated,
        "truncated": last and truncated,
        "truncation_reason": "length" if last and truncated else None,
        "outcome": outcome,
        "drop_reason": None,
        "split": None,
        "metadata": {},
    }
    return Transition(**{**values, **made.fields})


def _event(value: float, call_id: str | None, scope: str | None) -> RewardEvent:
    return RewardEvent(
        reward_id=None,
        value=value,
        components={"reward": value},
        bound="call" if call_id else "none",
        call_id=call_id,
        choice=None,
        scope_id=scope,
        order=0,
        time_ns=0,
    )


def _scope(scope_id: str, parent: str | None) -> ScopeSpan:
    return ScopeSpan(
        scope_id=scope_id,
        parent_scope_id=parent,
        agent=scope_id,
        order=0,
        start_ns=0,
        end_ns=1,
        outcome="ok",
        error=None,
    )
