"""Sums over episodes, one at a time, for `lsdk stats`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_sdk.cli import wording
from lightning_sdk.cli.reading import UNKNOWN
from lightning_sdk.cli.tokens import by_call, call_tokens
from lightning_sdk.mdp import TEXT_ONLY, CallView, Episode
from lightning_sdk.mdp.chains import build_chains
from lightning_sdk.mdp.select import is_on_distribution


@dataclass
class RunSums:
    """One run: how much of it can be used."""

    rollouts: int = 0
    calls: int = 0
    transitions: int = 0
    usable: int = 0
    text_only: int = 0
    off_distribution: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def complaint(self) -> str | None:
        """Why nothing of the run can be used, or nothing by tokens; None when something can."""
        if self.usable and self.usable == self.off_distribution:
            return (
                f"none of {wording.count(self.usable, 'transition')} that can be used by tokens was sampled as the "
                "policy samples (temperature above 0, no top-p …): a trainer leaves them out as off_distribution"
            )
        if self.usable:
            return None
        if self.text_only:
            as_text = {why: many for why, many in self.dropped.items() if why in TEXT_ONLY}
            return f"can be used as text only, not by tokens: {wording.tally(as_text)}"
        if self.transitions:
            transitions = wording.count(self.transitions, "transition")
            return f"none of {transitions} can be used: {wording.tally(self.dropped)}"
        if self.calls:
            return f"none of {wording.count(self.calls, 'call')} is a decision of a model that generates"
        return (
            f"no model call was recorded in {wording.count(self.rollouts, 'rollout')}: "
            "`lsdk doctor` shows which libraries are watched"
        )

    @property
    def fault(self) -> tuple[bool, ...]:
        """Runs with the same one have complaints that differ in numbers only."""
        return self.usable > 0, self.text_only > 0, self.transitions > 0, self.calls > 0

    def __add__(self, other: RunSums) -> RunSums:
        return RunSums(
            self.rollouts + other.rollouts,
            self.calls + other.calls,
            self.transitions + other.transitions,
            self.usable + other.usable,
            self.text_only + other.text_only,
            self.off_distribution + other.off_distribution,
            self.dropped + other.dropped,
        )


@dataclass
class Sums:
    """What a set of episodes adds up to."""

    outcomes: Counter[str] = field(default_factory=Counter)
    incomplete: int = 0
    fidelity: Counter[str] = field(default_factory=Counter)
    # By token ids; of the others, those whose text is all there.
    usable: int = 0
    text_only: int = 0
    # Of the usable ones those that were sampled otherwise than the policy samples.
    off_distribution: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    no_decision: Counter[str] = field(default_factory=Counter)
    # Calls whose ids do not go on from what their messages go on from, by why.
    breaks: Counter[str] = field(default_factory=Counter)
    rewards: int = 0
    unbound_rewards: int = 0
    returns: list[float] = field(default_factory=list)
    tools: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    response_tokens: int = 0
    calls_without_usage: int = 0
    models: Counter[str] = field(default_factory=Counter)
    agents: Counter[str] = field(default_factory=Counter)
    runs: dict[str, RunSums] = field(default_factory=lambda: defaultdict(RunSums))

    def add(self, episode: Episode, calls: Mapping[str, CallView], outcome: str) -> None:
        """Add one episode.

        Args:
            episode: the episode.
            calls: its calls by id.
            outcome: of `Loaded`. What is unknown belongs to no run, and is not waited for.
        """
        known = outcome != UNKNOWN
        run = self.runs[episode.run_id] if known else RunSums()
        run.rollouts += 1
        run.calls += len(calls)
        self.outcomes[outcome] += 1
        self.incomplete += known and not episode.complete
        self.no_decision.update(episode.calls_without_transition)
        self.tools.update(tool.name for tool in episode.tools)
        counting = [reward for reward in episode.rewards if not reward.replaced]
        self.rewards += len(counting)
        self.unbound_rewards += sum(reward.call_id is None for reward in counting)
        if episode.return_ is not None:
            self.returns.append(episode.return_)
        self.breaks.update(build_chains(episode.transitions).count_breaks())
        self._add_transitions(episode, run)
        self._add_calls(episode, calls)

    def _add_transitions(self, episode: Episode, run: RunSums) -> None:
        for transition in episode.transitions:
            run.transitions += 1
            self.fidelity[transition.fidelity] += 1
            if transition.drop_reason is None:
                off = not is_on_distribution(transition)
                self.usable += 1
                run.usable += 1
                self.off_distribution += off
                run.off_distribution += off
            else:
                as_text = transition.drop_reason in TEXT_ONLY
                self.text_only += as_text
                run.text_only += as_text
                self.dropped[transition.drop_reason] += 1
                run.dropped[transition.drop_reason] += 1

    def _add_calls(self, episode: Episode, calls: Mapping[str, CallView]) -> None:
        for call_id, choices in by_call(episode):
            self.models[choices[0].model or "unknown"] += 1
            self.agents[choices[0].agent or "no agent"] += 1
            prompt, response = call_tokens(choices, calls.get(call_id))
            self.prompt_tokens += prompt or 0
            self.response_tokens += response or 0
            self.calls_without_usage += prompt is None or response is None

    def mean_return(self) -> float | None:
        """Over rollouts that have a reward; None when none has."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    def complaints(self) -> dict[str, str]:
        """Runs of which nothing can be used, or nothing by tokens, each with the reason."""
        found = ((run_id, run.complaint()) for run_id, run in self.runs.items())
        return {run_id: complaint for run_id, complaint in found if complaint is not None}

    def merged_complaints(self) -> list[tuple[list[str], str]]:
        """`complaints`, with runs that have the same fault in one, summed up."""
        merged: dict[tuple[bool, ...], tuple[list[str], RunSums]] = {}
        for run_id in self.complaints():
            run = self.runs[run_id]
            run_ids, total = merged.get(run.fault, ([], RunSums()))
            merged[run.fault] = ([*run_ids, run_id], total + run)
        return [(run_ids, total.complaint() or "") for run_ids, total in merged.values()]

    def to_json(self) -> dict[str, Any]:
        """The sums, JSON-ready."""
        return {
            "rollouts": {
                "by_outcome": dict(self.outcomes),
                "incomplete": self.incomplete,
            },
            "transitions": {
                "usable": self.usable,
                "off_distribution": self.off_distribution,
                "text_only": self.text_only,
                "by_fidelity": dict(self.fidelity),
                "drop_reasons": dict(self.dropped),
            },
            "calls": {
                "by_model": dict(self.models),
                "by_agent": dict(self.agents),
                "without_transition": dict(self.no_decision),
                "broken_chains": dict(self.breaks),
                "prompt_tokens": self.prompt_tokens,
                "response_tokens": self.response_tokens,
                "without_token_counts": self.calls_without_usage,
            },
            "tool_calls": dict(self.tools),
            "rewards": {
                "count": self.rewards,
                "bound_to_no_call": self.unbound_rewards,
                "rollouts_with_reward": len(self.returns),
                "mean_return": self.mean_return(),
            },
            "complaints": self.complaints(),
        }
