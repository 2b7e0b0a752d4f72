"""An episode as JSON: its own facts, with transitions as native dataset records."""

from __future__ import annotations

import dataclasses
from typing import Any

from lightning_sdk.mdp import Episode, native_record


def episode_record(episode: Episode) -> dict[str, Any]:
    """The whole episode, JSON-ready."""
    return {
        "rollout_id": episode.rollout_id,
        "project": episode.project,
        "run_id": episode.run_id,
        "group_id": episode.group_id,
        "task_id": episode.task_id,
        "split": episode.split,
        "attempt": episode.attempt,
        "outcome": episode.outcome,
        "truncation_reason": episode.truncation_reason,
        "error": episode.error,
        "start_ns": episode.start_ns,
        "end_ns": episode.end_ns,
        "complete": episode.complete,
        "return": episode.return_,
        "metadata": dict(episode.metadata),
        "calls_without_transition": dict(episode.calls_without_transition),
        "scopes": [dataclasses.asdict(scope) for scope in episode.scopes],
        "tools": [dataclasses.asdict(tool) for tool in episode.tools],
        "rewards": [dataclasses.asdict(reward) for reward in episode.rewards],
        "transitions": [native_record(transition) for transition in episode.transitions],
    }
