"""What is to be run, and what is told of it: ids and seeds are the same whenever they are computed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_sdk.client.rollout import group_of
from lightning_sdk.rollouts.job import Job, Result
from lightning_sdk.rollouts.lifecycle import Life
from lightning_sdk.rollouts.retries import RetryRule
from lightning_sdk.rollouts.tasks import Task


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What all rollouts of a run have in common."""

    # "module:function", for tasks that name none of their own.
    agent: str | None = None
    project: str = "default"
    # Of the run: the seeds of its rollouts come from it.
    seed: int = 0
    # For one attempt, from when the agent is called.
    timeout_s: float | None = None
    # See `Job.routing`.
    routing: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # Kept with each rollout.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    retry: RetryRule = field(default_factory=RetryRule)
    # The run is given up when a larger share of the rollouts that have ended did so badly …
    max_failures: float = 0.5
    # … but not before so many have ended.
    least_ended: int = 10


@dataclass(slots=True, eq=False)
class PlannedRollout:
    """A rollout of the run, and where it is in its life."""

    group: PlannedGroup
    index: int
    rollout_id: str
    life: Life = field(default_factory=Life)
    # Of the latest attempt that has ended.
    result: Result | None = None
    # When it may start again, by `time.monotonic`.
    due_s: float = 0.0


@dataclass(slots=True, eq=False)
class PlannedGroup:
    """The rollouts of one task in one sampling round."""

    group_id: str
    task: Task
    round: int
    split: str | None
    rollouts: list[PlannedRollout] = field(default_factory=list)
    # How many of them have ended.
    ended: int = 0

    @property
    def finished(self) -> bool:
        """Whether all of them have."""
        return self.ended == len(self.rollouts)


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """A rollout whose life is over."""

    rollout_id: str
    # "succeeded", "failed", "truncated", "cancelled" or "lost".
    outcome: str
    # How many attempts it had.
    attempts: int
    # Of its last attempt; None where it was cancelled before any.
    result: Result | None


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """All rollouts of one task in one sampling round, in the order of the plan."""

    group_id: str
    task: Task
    round: int
    split: str | None
    rollouts: tuple[FinishedRollout, ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What became of a run so far."""

    run_id: str
    # Rollouts by where they are in their life.
    states: Mapping[str, int]
    # Attempts beyond the first ones.
    retries: int
    # Results that came too late and were not taken.
    late_results: int
    # The commonest errors of rollouts that ended badly, with how often each came.
    errors: Mapping[str, int]
    seconds: float


def plan_group(run_id: str, task: Task, n: int, round: int, split: str | None) -> PlannedGroup:
    """`n` rollouts of a task."""
    group = PlannedGroup(group_of(run_id, split, task.task_id, round), task, round, split)
    extend_group(group, n)
    return group


def extend_group(group: PlannedGroup, n: int) -> list[PlannedRollout]:
    """Let a group have `n` rollouts at least; returns those that are new."""
    new = [
        PlannedRollout(group, index, rollout_id_of(group.group_id, index))
        for index in range(len(group.rollouts), n)
    ]
    group.rollouts.extend(new)
    return new


def rollout_id_of(group_id: str, index: int) -> str:
    """The id of the rollout with this index in its group, from 0."""
    return f"ro_{hashlib.sha256(f'{group_id} {index}'.encode()).hexdigest()[:32]}"


def seed_of(seed: int, group: PlannedGroup, index: int) -> int:
    """The seed of a rollout: 31 bits, from what the run's seed, its task, round and index are."""
    key = f"{seed} {group.task.task_id} {group.split} {group.round} {index}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1


def job_of(rollout: PlannedRollout, run_id: str, options: RunOptions) -> Job:
    """The present attempt at a rollout."""
    group = rollout.group
    seed = seed_of(options.seed, group, rollout.index)
    agent = group.task.agent or options.agent
    assert agent is not None, "Runner.submit refuses tasks without an agent"
    return Job(
        rollout_id=rollout.rollout_id,
        attempt=rollout.life.attempt,
        group_id=group.group_id,
        run_id=run_id,
        project=options.project,
        split=group.split,
        round=group.round,
        task=group.task,
        agent=agent,
        seed=seed,
        timeout_s=options.timeout_s,
        routing=options.routing,
        metadata={**options.metadata, "seed": seed},
    )


def finished_group(group: PlannedGroup) -> FinishedGroup:
    """What others are told of a group whose rollouts have ended."""
    return FinishedGroup(
        group.group_id,
        group.task,
        group.round,
        group.split,
        tuple(
            FinishedRollout(each.rollout_id, each.life.state, each.life.attempt, each.result)
            for each in group.rollouts
        ),
    )
