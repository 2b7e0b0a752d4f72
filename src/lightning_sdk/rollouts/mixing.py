"""Several sets of tasks in one run: how often each task is taken, and in which order."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_sdk.errors import ConfigError
from lightning_sdk.rollouts.tasks import Task


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks with the weight that they have together."""

    name: str
    tasks: Sequence[Task]
    weight: float = 1.0


def merge(sets: Sequence[TaskSet]) -> Sequence[TaskSet]:
    """The same sets, with ids that differ among all of them: `name/id`, where there are several sets.

    Raises:
        ConfigError: two sets have the same name.
    """
    if len(sets) == 1:
        return sets
    repeated = [name for name, count in Counter(each.name for each in sets).items() if count > 1]
    if repeated:
        raise ConfigError(
            f"two sets of tasks are called {repeated[0]!r}: rename a file, or give one a larger weight instead"
        )
    return [
        replace(each, tasks=[replace(task, task_id=f"{each.name}/{task.task_id}") for task in each.tasks])
        for each in sets
    ]


def take(
    sets: Sequence[TaskSet], *, seed: int = 0, shuffled: bool = False, limit: int | None = None
) -> Sequence[tuple[Task, int]]:
    """One pass over the tasks.

    A task is taken as often as its weight times that of its set says: 2 is twice, 0.5 for half of the tasks, chosen
    by the seed. What is taken again is another sampling round, so a group of its own. The sets are spread evenly over
    the pass, each in its own order, unless all is shuffled.

    Args:
        sets: as `merge` gave them.
        seed: the same seed gives the same pass.
        shuffled: in an order that the seed gives.
        limit: at most so many, of the beginning.

    Returns:
        Tasks, each with its round, from 0.

    Raises:
        ConfigError: nothing is taken.
    """
    placed: list[tuple[float, int, Task, int]] = []
    for number, each in enumerate(sets):
        taken = [
            (task, round)
            for task in each.tasks
            for round in range(_times(each.weight * task.weight, task.task_id, seed))
        ]
        taken.sort(key=lambda item: item[1])  # first every task once
        placed += [((at + 0.5) / len(taken), number, *item) for at, item in enumerate(taken)]
    placed.sort(key=lambda item: item[:2])
    order = [(task, round) for _, _, task, round in placed]
    if shuffled:
        random.Random(seed).shuffle(order)  # noqa: S311 - no secret
    if not order:
        raise ConfigError("all weights together take no task: give a larger weight")
    return order[:limit]


def _times(weight: float, task_id: str, seed: int) -> int:
    whole = int(weight)
    digest = hashlib.sha256(f"{seed} weight {task_id}".encode()).digest()
    return whole + (int.from_bytes(digest[:7], "big") / 2**56 < weight - whole)
