"""The rollouts that are to start next."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection

from lightning_sdk.rollouts.plan import PlannedRollout


class Lineup:
    """First come, first served, but for agents that no worker takes now: those do not hold up the others."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[tuple[int, PlannedRollout]]] = {}
        self._last = itertools.count()
        # Before all that came in order.
        self._first = itertools.count(-1, -1)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def agents(self) -> Collection[str]:
        """Those whose rollouts are here."""
        return self._lines.keys()

    def append(self, agent: str, rollout: PlannedRollout, *, first: bool = False) -> None:
        """Add a rollout at the end, or at the beginning."""
        line = self._lines.setdefault(agent, deque())
        if first:
            line.appendleft((next(self._first), rollout))
        else:
            line.append((next(self._last), rollout))
        self._length += 1

    def pop(self, is_taken: Callable[[str], bool]) -> PlannedRollout | None:
        """Take out the first rollout whose agent is taken; None where there is none."""
        for _, agent in sorted((line[0][0], agent) for agent, line in self._lines.items()):
            if is_taken(agent):
                _, rollout = self._lines[agent].popleft()
                if not self._lines[agent]:
                    del self._lines[agent]
                self._length -= 1
                return rollout
        return None
