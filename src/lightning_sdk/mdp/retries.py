"""Which failed calls were made again, so that they are no decision but part of the call that took their place."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Final

from lightning_sdk.mdp.calls import CallView
from lightning_sdk.mdp.choices import ChoiceAt

_FAILURES: Final = frozenset({"error", "cancelled"})


def find_superseded(calls: Sequence[CallView], parents: Iterable[ChoiceAt | None]) -> set[int]:
    """Positions of the calls that failed, or were given up, and then were made again.

    A call repeats an earlier one if that one failed or was given up, was over when the later one began, and both have
    the same scope, process, API and request, byte for byte. What a later call extends was no failure to its agent.
    Each call repeats one other at the most, so a failed call needs one of its own; where fewer were made again than
    had failed by then, nobody can tell which, and none of them counts as made again. Calls that were under way
    together never repeat each other.

    Args:
        calls: in call order.
        parents: for each call what it extends.
    """
    failed = {at for at, call in enumerate(calls) if call.problem in _FAILURES}
    if not failed:
        return set()
    failed -= {parent[0] for parent in parents if parent is not None}
    alike: dict[tuple[bytes, str | None, str, bytes], list[int]] = defaultdict(list)
    for at, call in enumerate(calls):
        # Outside a rollout nothing says that two calls belong together. Bodies that were withheld tell nothing.
        if call.rollout_id is not None and call.request_bytes:
            alike[call.producer, call.scope_id, call.api, call.request_bytes].append(at)
    return {found for members in alike.values() for found in _find_repeated(calls, members, failed)}


def _find_repeated(calls: Sequence[CallView], members: Sequence[int], failed: set[int]) -> list[int]:
    """Of calls with one request, in the order in which they began, those that a later one repeats."""
    under_way: list[tuple[int, int]] = []
    # Over, but not repeated yet, each with the call that was the first to begin afterwards.
    waiting: deque[tuple[int, int]] = deque()
    repeated: list[tuple[int, int]] = []
    for at in members:
        while under_way and under_way[0][0] < calls[at].start_ns:
            waiting.append((heapq.heappop(under_way)[1], at))
        if waiting:
            repeated.append((waiting.popleft()[0], at))
        if at in failed:
            heapq.heappush(under_way, (calls[at].end_ns, at))
    if waiting:
        # One that nobody repeated was waiting from here on: any later repetition may have been its.
        _, since = waiting[0]
        repeated = [(at, by) for at, by in repeated if by < since]
    return [at for at, _ in repeated]
