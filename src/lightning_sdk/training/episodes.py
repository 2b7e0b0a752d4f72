"""From rollouts that have ended to their episodes: read from the collector, waiting a bounded time for the rest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.collector.reader import RemoteReader
from lightning_sdk.errors import CollectorError
from lightning_sdk.mdp import CallView, Episode, Group, assemble, decode_call
from lightning_sdk.mdp.air.apply import apply_air
from lightning_sdk.mdp.air.rules import Rule
from lightning_sdk.records import SourcedRecord
from lightning_sdk.rollouts.plan import FinishedGroup

_LOOK_EVERY_S: Final = 0.05
# What a rollout whose process was killed had written comes to the collector by others, which look every two
# seconds; nobody says that nothing will follow.
_AFTER_A_KILL_S: Final = 5.0
_MAX_LOOK_EVERY_S: Final = 1.0


@dataclass
class Arrived:
    """Groups as they can be handed on."""

    groups: list[Group] = field(default_factory=list)
    # Rollouts whose records did not arrive in time, or not all of them.
    lost: int = 0


class EpisodeSource:
    """Reads episodes through a collector, which may be away for a while.

    Args:
        endpoint: of the collector.
        token: its token, where it has one.
        arrival_timeout_s: how long to wait for what is missing.
        policy_endpoint: base URL of the policy endpoint, whose calls have token records that come on another way.
        rules: give rewards for what was observed.
        wait: sleeps so long, or raises to give up.
    """

    def __init__(
        self,
        endpoint: str,
        token: str | None,
        *,
        arrival_timeout_s: float,
        policy_endpoint: str,
        rules: Sequence[Rule] = (),
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint = endpoint
        self._token = token
        self._arrival_timeout_s = arrival_timeout_s
        self._policy_endpoint = policy_endpoint.rstrip("/") + "/"
        self._rules = rules
        self._wait = wait
        self._reader: RemoteReader | None = None

    def read(self, finished: Iterable[FinishedGroup]) -> Arrived:
        """The episodes of groups, in the order of the plan; complete, or of rollouts that were ended from outside.

        A rollout that is still missing something when the time is up is left out and counted as lost.

        Raises:
            CollectorError: the collector cannot be reached in that time.
        """
        groups = list(finished)
        killed = {
            rollout.rollout_id
            for group in groups
            for rollout in group.rollouts
            if rollout.result is not None and not rollout.result.end_written
        }
        missing = {rollout.rollout_id for group in groups for rollout in group.rollouts}
        began_s = time.monotonic()
        arrived: dict[str, Episode] = {}
        pause_s = _LOOK_EVERY_S
        while True:
            waited_s = time.monotonic() - began_s
            last = waited_s > self._arrival_timeout_s
            for episode, is_whole in self._look(missing, must=last):
                was_killed = episode.rollout_id in killed and episode.outcome != "running"
                settled = waited_s > min(_AFTER_A_KILL_S, self._arrival_timeout_s)
                if is_whole or (was_killed and (settled or last)) or (last and episode.complete):
                    assert episode.rollout_id is not None
                    arrived[episode.rollout_id] = episode
            missing -= set(arrived)
            if not missing or last:
                break
            self._wait(pause_s)
            pause_s = min(1.5 * pause_s, _MAX_LOOK_EVERY_S)
        return Arrived(groups=[_group(group, arrived) for group in groups], lost=len(missing))

    def close(self) -> None:
        """Let go of the connection."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _look(self, rollout_ids: Iterable[str], *, must: bool) -> list[tuple[Episode, bool]]:
        """What is stored of these rollouts, and whether it is all there. Nothing where the collector is away."""
        query = RolloutQuery(rollout_id_prefixes=sorted(rollout_ids))
        found = []
        try:
            if self._reader is None:
                self._reader = RemoteReader(self._endpoint, self._token)
            for summary, records in self._reader.read_rollouts(query):
                for episode in assemble(records):
                    if episode.rollout_id == summary.rollout_id:
                        whole = episode.complete and self._has_tokens(episode, records)
                        found.append((apply_air(episode, self._rules) if self._rules else episode, whole))
        except CollectorError:
            self.close()
            if must:
                raise
            return []
        return found

    def _has_tokens(self, episode: Episode, records: Sequence[SourcedRecord]) -> bool:
        """Whether no answered call of the policy endpoint waits for its token record."""
        waiting = {each.call_id for each in episode.transitions if each.drop_reason == "no_token_ids"}
        return not any(self._is_served(call) for call in _calls(records) if call.call_id in waiting)

    def _is_served(self, call: CallView) -> bool:
        return call.outcome == "ok" and call.url.startswith(self._policy_endpoint)


def _calls(records: Iterable[SourcedRecord]) -> Iterable[CallView]:
    for record in records:
        if record.record.HasField("call"):
            with contextlib.suppress(ValueError):
                yield decode_call(record)


def _group(group: FinishedGroup, arrived: dict[str, Episode]) -> Group:
    episodes = [arrived[rollout.rollout_id] for rollout in group.rollouts if rollout.rollout_id in arrived]
    return Group(group_id=group.group_id, episodes=tuple(episodes))
