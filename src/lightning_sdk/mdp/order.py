"""The order of a rollout's records: by cause, and by clock only between what is truly concurrent.

Within a producer the causal clock (`Record.order`) decides. A producer that was carried into the rollout
begins after the moment of its parent that its `Join` names. What neither rule orders is merged by start time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from lightning_sdk.records import SourcedRecord

# Producer -> the producer it came from, and that one's clock at the moment.
Lineage = Mapping[bytes, tuple[bytes, int]]


def find_lineage(records: Iterable[SourcedRecord]) -> Lineage:
    """Where each producer came from, by its first `Join`; without circles, and parents that wrote nothing."""
    joins: dict[bytes, SourcedRecord] = {}
    producers = set()
    for item in records:
        producers.add(item.producer)
        if item.record.HasField("join"):
            first = joins.get(item.producer)
            if first is None or item.seq < first.seq:
                joins[item.producer] = item
    parents = {
        producer: (item.record.join.parent_producer, item.record.join.parent_order)
        for producer, item in joins.items()
        if item.record.join.parent_producer in producers
    }
    return {producer: parent for producer, parent in parents.items() if not _in_circle(producer, parents)}


def order_records(records: Iterable[SourcedRecord], lineage: Lineage) -> list[SourcedRecord]:
    """All records, so that nothing comes before its cause. The order in which they are given is nothing."""
    chains: dict[bytes, list[SourcedRecord]] = defaultdict(list)
    for item in records:
        chains[item.producer].append(item)
    for chain in chains.values():
        chain.sort(key=lambda item: (item.record.order, item.seq))
    if len(chains) == 1:
        return next(iter(chains.values()))
    # Children wait for their parent to get past the moment they came from; the earliest moment is last.
    waiting: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
    for child, (parent, moment) in lineage.items():
        waiting[parent].append((moment, child))
    for children in waiting.values():
        children.sort(reverse=True)

    ordered: list[SourcedRecord] = []
    taken = dict.fromkeys(chains, 0)
    heads: list[tuple[int, bytes]] = []
    free = [producer for producer in chains if producer not in lineage]
    while free or heads:
        while free:
            producer = free.pop()
            chain, at = chains[producer], taken[producer]
            children = waiting[producer]
            while children and (at == len(chain) or children[-1][0] < chain[at].record.order):
                free.append(children.pop()[1])
            if at < len(chain):
                heapq.heappush(heads, (chain[at].record.start_ns, producer))
        if heads:
            _, producer = heapq.heappop(heads)
            ordered.append(chains[producer][taken[producer]])
            taken[producer] += 1
            free.append(producer)
    return ordered


def find_concurrent(moments: Sequence[tuple[bytes, int]], lineage: Lineage) -> list[bool]:
    """For each of several moments (producer, order) whether it is concurrent with another one of them."""
    ticks: dict[bytes, list[int]] = defaultdict(list)
    for producer, order in moments:
        ticks[producer].append(order)
    if len(ticks) < 2:
        return [False] * len(moments)
    for orders in ticks.values():
        orders.sort()

    # Moments in a producer and all that came from it; what came from a producer, by moment.
    below: dict[bytes, int] = defaultdict(int)
    for producer, orders in ticks.items():
        for ancestor, _ in _ancestry(producer, lineage):
            below[ancestor] += len(orders)
        below[producer] += len(orders)
    offspring: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for child, (parent, moment) in lineage.items():
        offspring[parent].append((moment, below[child]))
    after = {producer: _suffix_sums(sorted(children)) for producer, children in offspring.items()}

    before = {
        producer: sum(
            bisect_right(ticks.get(ancestor, []), moment) for ancestor, moment in _ancestry(producer, lineage)
        )
        for producer in ticks
    }
    result = []
    for producer, order in moments:
        comparable = before[producer] + len(ticks[producer])
        if producer in after:
            begun, sums = after[producer]
            comparable += sums[bisect_left(begun, order)]
        result.append(comparable < len(moments))
    return result


def _ancestry(producer: bytes, lineage: Lineage) -> list[tuple[bytes, int]]:
    path = []
    while producer in lineage:
        producer, moment = lineage[producer]
        path.append((producer, moment))
    return path


def _suffix_sums(children: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    sums = [0] * (len(children) + 1)
    for at in range(len(children) - 1, -1, -1):
        sums[at] = sums[at + 1] + children[at][1]
    return [moment for moment, _ in children], sums


def _in_circle(producer: bytes, parents: Mapping[bytes, tuple[bytes, int]]) -> bool:
    seen = {producer}
    at = producer
    while at in parents:
        at = parents[at][0]
        if at == producer:
            return True
        if at in seen:
            return False
        seen.add(at)
    return False
