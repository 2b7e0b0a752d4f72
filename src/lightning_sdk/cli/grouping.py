"""Stored rollouts as groups of episodes, none held longer than its group is incomplete."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli.reading import Loaded, load
from lightning_sdk.collector.reader import Reader
from lightning_sdk.mdp import Episode, Group, group_episodes


class Snapshot:
    """The rollouts that there were at one moment, as groups.

    A listing first tells how many rollouts each group has; then they are read oldest first, and a group is
    handed on, and forgotten, when its last one was read. Rollouts that begin meanwhile are left out.
    """

    def __init__(self, reader: Reader, query: RolloutQuery) -> None:
        self._reader = reader
        self._query = query
        self._group_of = {each.rollout_id: each.group_id for each in reader.list_rollouts(query)}
        # Groups given out so far.
        self.handed_on = 0

    @property
    def rollouts(self) -> int:
        """How many there are."""
        return len(self._group_of)

    def groups(self, watch: Callable[[Iterator[Loaded]], Iterable[Loaded]]) -> Iterator[Group]:
        """All groups, in the order in which they became whole.

        Args:
            watch: passes the rollouts on as they are read (a progress bar).
        """
        missing = Counter(self._group_of.values())
        waiting: dict[str, list[Episode]] = defaultdict(list)
        for loaded in watch(self._rollouts()):
            group_id = self._group_of[loaded.summary.rollout_id]
            waiting[group_id].append(loaded.episode)
            missing[group_id] -= 1
            if missing[group_id] <= 0:
                yield from self._hand_on(waiting.pop(group_id))
        # Groups of which a rollout went away between the listing and the reading.
        for episodes in waiting.values():
            yield from self._hand_on(episodes)

    def _rollouts(self) -> Iterator[Loaded]:
        return (each for each in load(self._reader, self._query) if each.summary.rollout_id in self._group_of)

    def _hand_on(self, episodes: list[Episode]) -> Iterator[Group]:
        for group in group_episodes(episodes):
            self.handed_on += 1
            yield group
