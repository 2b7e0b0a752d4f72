"""Which tasks a round takes: a function of seed and round alone, so that a resumed run takes the same ones next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from lightning_sdk.errors import ConfigError
from lightning_sdk.rollouts.tasks import Task

# What a round takes where nobody says otherwise.
_USUAL: Final = 16


class Batches:
    """The tasks of each round.

    A pass over the tasks is cut into rounds of `size`; what is left over at its end is skipped in that pass. With
    `shuffle` each pass has an order of its own. Tasks of unequal weight are drawn for each round anew, in proportion
    to it and without repetition; one of weight 0 never comes.

    Raises:
        ConfigError: fewer tasks than a round needs.
    """

    def __init__(self, tasks: Sequence[Task], size: int | None, *, seed: int, shuffle: bool) -> None:
        self._tasks = [task for task in tasks if task.weight > 0]
        if not self._tasks:
            raise ConfigError(
                "there is no task to train on: give a file with at least one row of weight above 0"
            )
        self.size = min(_USUAL, len(self._tasks)) if size is None else size
        if self.size > len(self._tasks):
            raise ConfigError(
                f"learning.tasks_per_round is {self.size} and there are {len(self._tasks)} tasks: "
                "give more tasks, or a smaller number"
            )
        self._seed = seed
        self._shuffle = shuffle
        self._weighted = len({task.weight for task in self._tasks}) > 1

    def of_round(self, round_: int) -> list[Task]:
        """The tasks of a round, counted from 0; no task twice."""
        if self._weighted:
            return self._draw(round_)
        a_pass = len(self._tasks) // self.size
        order = list(self._tasks)
        if self._shuffle:
            random.Random(f"{self._seed}/pass/{round_ // a_pass}").shuffle(order)  # noqa: S311 - no secret
        start = round_ % a_pass * self.size
        return order[start : start + self.size]

    def _draw(self, round_: int) -> list[Task]:
        """By Efraimidis and Spirakis: the largest of u ** (1 / weight)."""
        numbers = random.Random(f"{self._seed}/round/{round_}")  # noqa: S311 - no secret
        keyed = [(numbers.random() ** (1 / task.weight), task) for task in self._tasks]
        return [task for _, task in sorted(keyed, key=lambda pair: -pair[0])[: self.size]]
