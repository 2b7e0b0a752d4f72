"""Which call a reward belongs to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lightning_sdk.mdp.calls import CallView
from lightning_sdk.mdp.episode import RewardEvent, ScopeSpan
from lightning_sdk.mdp.rewards import decode_rewards, reward_records
from lightning_sdk.records import SourcedRecord


@dataclass(frozen=True, slots=True)
class BoundReward:
    """A reward and the position of its call in the rollout's call order; None where it found no call."""

    event: RewardEvent
    at: int | None


def bind_rewards(
    records: Sequence[SourcedRecord], calls: Sequence[CallView], scopes: Iterable[ScopeSpan]
) -> list[BoundReward]:
    """Bind each reward of one rollout by the rule that was recorded with it.

    - "call": the call with the recorded call id, or else response id. Its scope becomes the reward's.
    - "scope": the recorded call; where none is recorded (or it is no action), the latest one of the scope's
      subtree that had finished when the reward was emitted.
    - "context" and "rollout": the last call of the rollout.
    - "none", and whatever finds no call or names a choice that the call does not have: no call; it counts in
      the return only.

    Only calls that are actions (something was answered) take rewards: nothing can be learned from a failed
    one.

    Args:
        records: the rollout's records in order; what is no reward is passed over.
        calls: in call order.
        scopes: all scopes of the rollout.
    """
    finder = _Finder(calls, scopes)
    bound = []
    items = reward_records(records)
    for item, event in zip(items, decode_rewards(items), strict=True):
        at = finder.find(event, item)
        if at is not None and event.choice is not None:
            at = at if any(choice.index == event.choice for choice in calls[at].choices) else None
        scope_id = event.scope_id
        if event.bound == "call" and at is not None:
            scope_id = calls[at].scope_id
        elif event.bound in ("context", "rollout"):
            scope_id = None
        call_id = None if at is None else calls[at].call_id
        bound.append(BoundReward(replace(event, call_id=call_id, scope_id=scope_id), at))
    return bound


class _Finder:
    """Looks calls up by what a reward says."""

    def __init__(self, calls: Sequence[CallView], scopes: Iterable[ScopeSpan]) -> None:
        self._calls = calls
        self._actions = [at for at, call in enumerate(calls) if call.choices]
        self._by_id: dict[str, list[int]] = defaultdict(list)
        for at in self._actions:
            self._by_id[calls[at].call_id].append(at)
        self._by_response_id: dict[str, list[int]] = defaultdict(list)
        for at in self._actions:
            self._by_response_id[calls[at].response_id or ""].append(at)
        self._parents = {scope.scope_id: scope.parent_scope_id for scope in scopes}
        self._finished: dict[str, _Finished] | None = None

    def find(self, event: RewardEvent, item: SourcedRecord) -> int | None:
        if event.bound == "call":
            return self._named(event.call_id, item)
        if event.bound == "scope":
            recorded = self._by_id.get(event.call_id or "")
            return recorded[-1] if recorded else self._latest(event.scope_id or "", item)
        if event.bound in ("context", "rollout"):
            return self._actions[-1] if self._actions else None
        return None

    def _named(self, name: str | None, item: SourcedRecord) -> int | None:
        if not name:
            return None
        candidates = self._by_id.get(name) or self._by_response_id.get(name) or ()
        # Some servers repeat response ids: then the latest that the producer of the reward can have meant.
        for at in reversed(candidates):
            if self._calls[at].producer != item.producer or self._calls[at].seq < item.seq:
                return at
        return None

    def _latest(self, scope_id: str, item: SourcedRecord) -> int | None:
        if self._finished is None:
            self._finished = self._finished_by_scope()
        finished = self._finished.get(scope_id)
        return None if finished is None else finished.before(item)

    def _finished_by_scope(self) -> dict[str, _Finished]:
        """Calls by each scope in whose subtree they are; "" is the whole rollout."""
        members: dict[str, list[int]] = defaultdict(list)
        for at in self._actions:
            for scope_id in self._enclosing(self._calls[at].scope_id):
                members[scope_id].append(at)
        return {scope_id: _Finished(self._calls, ats) for scope_id, ats in members.items()}

    def _enclosing(self, scope_id: str | None) -> set[str]:
        path = {""}
        while scope_id and scope_id not in path:
            path.add(scope_id)
            scope_id = self._parents.get(scope_id)
        return path


class _Finished:
    """Calls by when they were over: by place in the spool within a producer, by clock between producers."""

    def __init__(self, calls: Sequence[CallView], ats: Iterable[int]) -> None:
        by_producer: dict[bytes, list[int]] = defaultdict(list)
        for at in ats:
            by_producer[calls[at].producer].append(at)
        self._calls = calls
        self._by_seq: Mapping[bytes, list[tuple[int, int]]] = {
            producer: sorted((calls[at].seq, at) for at in members)
            for producer, members in by_producer.items()
        }
        self._by_end: Mapping[bytes, list[tuple[int, int]]] = {
            producer: sorted((calls[at].end_ns, at) for at in members)
            for producer, members in by_producer.items()
        }

    def before(self, item: SourcedRecord) -> int | None:
        found: list[int] = []
        for producer, members in self._by_end.items():
            if producer == item.producer:
                own = self._by_seq[producer]
                place = bisect_left(own, (item.seq, -1))
                found.extend(at for _, at in own[max(place - 1, 0) : place])
            else:
                place = bisect_right(members, (item.record.start_ns, len(self._calls)))
                found.extend(at for _, at in members[max(place - 1, 0) : place])
        return max(found, key=lambda at: (self._calls[at].end_ns, at), default=None)
