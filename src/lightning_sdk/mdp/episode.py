"""What a rollout becomes: an episode of transitions, with its scopes, tools and rewards.

Times are Unix nanoseconds. What is not known is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Fidelity = Literal["engine", "text"]
RolloutOutcome = Literal["running", "succeeded", "failed", "truncated", "cancelled", "lost"]
CallOutcome = Literal["ok", "error", "cancelled", "closed_early", "abandoned"]
Bound = Literal["call", "scope", "context", "rollout", "none"]
# How a call's place in the rollout is known: by cause, or (truly concurrent calls of different
# producers) only by the clocks of their machines.
Order = Literal["causal", "clock"]
# Why a transition cannot be trained on by its tokens. Those of TEXT_ONLY come last: the others are told first.
DropReason = Literal[
    "superseded_retry",  # it failed or was given up, and was made again
    "error",  # the call failed
    "cancelled",  # the caller gave up before the response was whole
    "unreadable",  # request or response is not what its API says, or we do not know the API
    "empty_response",  # nothing was generated
    "unused_choice",  # one of several choices that nothing extended or rewarded
    "ambiguous_choice",  # several choices, and which one was used cannot be known
    "id_check_failed",  # ids, log probabilities and usage do not agree, or are another attempt's
    "no_token_ids",  # no engine told the ids
]
# They leave a transition good for learning from its text (SFT).
TEXT_ONLY: Final[frozenset[DropReason]] = frozenset({"id_check_failed", "no_token_ids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One choice of one model call: the fields of the native dataset record, in its order.

    `terminated` and `truncated` tell whether the episode ended with this call; exactly one is true where
    `next_call_id` is None, none elsewhere.
    """

    project: str
    run_id: str
    group_id: str
    rollout_id: str | None
    task_id: str | None
    attempt: int
    agent: str | None
    # The scope in which the call was made.
    invocation_id: str | None
    # Index of the call in the rollout's call order, from 0.
    step: int
    call_id: str
    choice: int
    # The call whose prompt and response this prompt extends: by exact token ids, or at "text" fidelity by messages.
    parent_call_id: str | None
    next_call_id: str | None
    order: Order
    # Sent after the rollout had ended, as by work that it left behind.
    late: bool = False
    model: str | None
    policy: str | None
    # At the first and at the last sampled token.
    policy_version: int | None
    policy_version_end: int | None
    fidelity: Fidelity
    start_ns: int
    end_ns: int
    # messages, tools, tool_choice, response_format, chat_template_kwargs
    observation: Mapping[str, Any]
    # requested, effective: each a mapping or None
    sampling: Mapping[str, Any]
    logprobs_mode: str | None
    # message, finish_reason
    action: Mapping[str, Any] | None
    prompt_token_ids: Sequence[int] | None
    response_token_ids: Sequence[int] | None
    response_logprobs: Sequence[float] | None
    # Sum of what is bound to this call; None while the rollout has no reward at all.
    reward: float | None
    reward_components: Mapping[str, float] | None
    # The scopes in which those rewards were emitted, each with its part; "" is the rollout itself.
    reward_scopes: Mapping[str, float] | None
    # Sum of the rewards of this and all later calls of the rollout.
    return_to_go: float | None
    terminated: bool
    truncated: bool
    truncation_reason: str | None
    outcome: RolloutOutcome
    drop_reason: DropReason | None
    split: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeSpan:
    """One agent invocation."""

    scope_id: str
    parent_scope_id: str | None
    agent: str
    order: int
    start_ns: int
    # None while it runs, or when its process died.
    end_ns: int | None
    outcome: CallOutcome | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEvent:
    """One execution of a tool. `arguments` and `result` are parsed JSON."""

    tool_call_id: str
    name: str
    agent: str | None
    scope_id: str | None
    order: int
    start_ns: int
    end_ns: int
    arguments: Any
    result: Any
    outcome: CallOutcome
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardEvent:
    """One reward as it was emitted, and where it was bound.

    `value` is the sum of `components`. `call_id` is None where it counts in the return only.
    `replaced` marks one whose `reward_id` came again later; it counts nowhere.
    """

    reward_id: str | None
    value: float
    components: Mapping[str, float]
    bound: Bound
    call_id: str | None
    choice: int | None
    scope_id: str | None
    order: int
    time_ns: int
    replaced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One assembled rollout."""

    rollout_id: str | None
    project: str
    run_id: str
    group_id: str
    task_id: str | None
    split: str | None
    attempt: int
    outcome: RolloutOutcome
    # What cut it off, as was told at its end; None where its outcome is not "truncated".
    truncation_reason: str | None = None
    error: str | None
    start_ns: int
    end_ns: int | None
    # Every producer that joined has left, and all of its records are here.
    complete: bool
    metadata: Mapping[str, Any]
    # In call order; the choices of one call are neighbours.
    transitions: Sequence[Transition]
    scopes: Sequence[ScopeSpan]
    tools: Sequence[ToolEvent]
    rewards: Sequence[RewardEvent]
    # Sum of all rewards; None when there is none.
    return_: float | None
    # Calls by why they have no transition ("embedding"), and what told a call or tool call again
    # ("duplicate_call", "duplicate_tool_call", "duplicate_span").
    calls_without_transition: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Episodes that may be compared: same run, split, task and sampling round."""

    group_id: str
    episodes: Sequence[Episode]
