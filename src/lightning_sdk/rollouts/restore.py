"""A run as its journal tells it: what was to be run, and how far each rollout had come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from pydantic import TypeAdapter

from lightning_sdk.errors import RunError
from lightning_sdk.home import Home
from lightning_sdk.rollouts.job import Result
from lightning_sdk.rollouts.journal import FORMAT, JOURNAL, RunJournal, read_journal, run_directory
from lightning_sdk.rollouts.lifecycle import FINAL, Life, State
from lightning_sdk.rollouts.plan import PlannedGroup, PlannedRollout, extend_group
from lightning_sdk.rollouts.tasks import Task


@dataclass(slots=True)
class Restored:
    """What a journal tells."""

    # What whoever began the run kept with it.
    options: Mapping[str, Any] = field(default_factory=dict)
    groups: dict[str, PlannedGroup] = field(default_factory=dict)
    # Attempts that were under way when the runner went away.
    interrupted: list[PlannedRollout] = field(default_factory=list)


def open_run(
    home: Home, run_id: str, begun_with: Mapping[str, Any], *, resume: bool
) -> tuple[RunJournal, Restored]:
    """Open a run's journal for writing, and read what it tells.

    Args:
        home: the state directory.
        run_id: of the run.
        begun_with: JSON to keep in the journal of a new run. No secrets.
        resume: the run was begun before.

    Raises:
        RunError: the run is there already, is not there to be resumed, or is run by another process.
    """
    directory = run_directory(home, run_id)
    known = (directory / JOURNAL).exists()
    if known and not resume:
        raise RunError(f"there is a run {run_id} already: resume it, or take another id")
    if resume and not known:
        list(read_journal(directory))  # says that there is none
    home.ensure()
    journal = RunJournal(directory)
    try:
        if resume:
            return journal, restore(read_journal(directory))
        journal.write("run", format=FORMAT, run_id=run_id, options=begun_with)
    except BaseException:
        journal.close()
        raise
    return journal, Restored()


def restore(events: Iterable[Mapping[str, Any]]) -> Restored:
    """Read a journal.

    A rollout that was running or waiting is queued again; the attempt that was under way does not count as used up.

    Raises:
        RunError: an event cannot be understood.
    """
    restored = Restored()
    rollouts: dict[str, PlannedRollout] = {}
    event: Mapping[str, Any] = {}
    try:
        for event in events:
            _apply(restored, rollouts, event)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"the run's journal has a line that cannot be understood ({event.get('type')!r}: {error})"
        ) from None
    for group in restored.groups.values():
        for rollout in group.rollouts:
            if rollout.life.state == "running":
                restored.interrupted.append(rollout)
                rollout.life = Life("queued", rollout.life.attempt, rollout.life.used - 1)
            elif rollout.life.state == "waiting":
                rollout.life = Life("queued", rollout.life.attempt, rollout.life.used)
        group.ended = sum(rollout.life.ended for rollout in group.rollouts)
    return restored


def _apply(restored: Restored, rollouts: dict[str, PlannedRollout], event: Mapping[str, Any]) -> None:
    kind = event.get("type")
    if kind == "run":
        restored.options = event["options"]
    elif kind == "group":
        group = restored.groups.get(event["group_id"])
        if group is None:
            task: Task = TypeAdapter(Task).validate_python(event["task"])
            group = PlannedGroup(event["group_id"], task, event["round"], event["split"])
            restored.groups[group.group_id] = group
        for rollout in extend_group(group, event["n"]):
            rollouts[rollout.rollout_id] = rollout
    elif kind == "started":
        rollout = rollouts[event["rollout_id"]]
        rollout.life = Life("running", event["attempt"], rollout.life.used + 1)
    elif kind == "ended":
        result: Result = TypeAdapter(Result).validate_python(event["result"])
        rollout = rollouts[result.rollout_id]
        if event["state"] not in get_args(State):
            raise ValueError(f"no state is called {event['state']!r}")
        state = cast(State, event["state"])
        interrupted = state == "queued"
        rollout.life = Life(state, result.attempt, rollout.life.used - interrupted)
        rollout.result = result if state in FINAL else None
    elif kind == "reopened":
        rollout = rollouts[event["rollout_id"]]
        rollout.life = Life("queued", rollout.life.attempt, 0)
