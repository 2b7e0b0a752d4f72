"""What the tests of a store ask it, and how they fill it."""

from __future__ import annotations

from collections.abc import Callable

from lightning_sdk._proto.read_pb2 import RolloutQuery, RolloutSummary
from lightning_sdk.collector.store.base import Store
from support.frames import Telling, producer_id, rollout_id

P = producer_id("p")
ALL = RolloutQuery()

OpenStore = Callable[[], Store]


def summary_of(store: Store, name: str) -> RolloutSummary:
    (summary,) = store.list_rollouts(RolloutQuery(rollout_id_prefixes=[rollout_id(name)]))
    return summary


def names(store: Store, query: RolloutQuery, known: list[str]) -> list[str]:
    """The rollouts that a query lists, by the names that their ids were made of."""
    by_id = {rollout_id(name): name for name in known}
    return [by_id[summary.rollout_id] for summary in store.list_rollouts(query)]


def add(store: Store, *tellings: Telling) -> None:
    for telling in tellings:
        store.append(telling.producer, telling.frames)
