"""What the store says of a rollout is what the assembly makes of its records: of any records, in any order.

1. Every field of a summary equals the episode's.
2. What the store joins across rollouts is what the assembly joins, told one rollout at a time or all at once.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.mdp import Episode, assemble
from lightning_sdk.records import Record, Reward, SourcedRecord
from support.frames import producer_id, to_frame
from support.stores import ALL

IDS = ["", "id_1", "id_2", "id_3"]
OUTCOMES = [0, 1, 2, 3, 4, 5, 77]  # unspecified, all that there are, and one of a later version


def body(rng: random.Random, number: int) -> dict[str, Any]:
    """The body of a random record; ids come from a small pool, so that they meet and clash."""
    name, outcome = rng.choice(IDS), rng.choice(OUTCOMES)
    answer = b'{"id": "%s", "choices": []}' % rng.choice(IDS).encode()
    value = rng.choice([0.5, 1.0, float("nan")])
    reward = {"components": [{"value": value}], "bound": rng.choice(Reward.Bound.values()), "call_id": name}
    choices: list[dict[str, Any]] = [
        {"join": {"pid": 1}},
        {"leave": {"count": rng.randrange(6)}},
        {"rollout_start": {"project": name, "task_id": rng.choice(IDS), "split": rng.choice(IDS)}},
        {"rollout_end": {"outcome": outcome}},
        {"rollout_end": {"outcome": outcome, "truncation_reason": rng.choice(["", "timeout"])}},
        {"scope_start": {"agent": rng.choice(IDS), "parent_scope_id": rng.choice(["", "sc_0"])}},
        {"scope_end": {"outcome": outcome}},
        {"call": {"call_id": name, "api": "chat.completions", "response": answer, "outcome": outcome}},
        {"call": {"call_id": f"ca_{number}", "endpoint_call_id": name, "response": answer}},
        {"tool_call": {"tool_call_id": name, "outcome": outcome}},
        {"reward": reward},
        {"reward": {**reward, "bound": Reward.BOUND_CALL}},
        {"tokens": {"call_id": name}},
        {"counters": {"values": {"drops": number}}},
        {"note": {"values": b'{"n": %d}' % number}},
        {"otel_span": {"resource_spans": b""}},
    ]
    return rng.choice(choices)


def random_records(rng: random.Random) -> list[SourcedRecord]:
    records = []
    for producer in ("p", "q", "r")[: rng.randrange(1, 4)]:
        for seq in range(1, rng.randrange(2, 14)):
            number = len(records) + 1
            record = Record(
                order=seq,
                start_ns=rng.randrange(6),
                end_ns=rng.randrange(6),
                rollout_id=rng.choice(["", "ro_1", "ro_1", "ro_2"]),
                attempt=rng.choice([0, 1, 1, 1, 1, 2]),
                group_id=rng.choice(["", "g", "h"]),
                scope_id=f"sc_{number}",
                **body(rng, number),
            )
            if rng.random() < 0.5:
                record.trace_id, record.span_id = b"t" * 16, rng.choice([b"1", b"2"]) * 8
            records.append(SourcedRecord(producer_id(producer), seq, record))
    return records


def facts_of(episode: Episode) -> dict[str, Any]:
    """An episode as a summary tells of it."""
    roots = [(scope.start_ns, scope.agent) for scope in episode.scopes if not scope.parent_scope_id]
    calls = {step.step for step in episode.transitions if not step.call_id.startswith("otel_")}
    return {
        "rollout_id": episode.rollout_id,
        "project": episode.project,
        "run_id": episode.run_id,
        "group_id": episode.group_id,
        "task_id": episode.task_id or "",
        "split": episode.split or "",
        "attempt": episode.attempt,
        "start_ns": episode.start_ns,
        "end_ns": episode.end_ns or 0,
        "outcome": episode.outcome,
        "root_agent": min((root for root in roots if root[1]), default=(0, ""))[1],
        "calls": len(calls),
        "tool_calls": len(episode.tools),
        "rewards": len(episode.rewards),
        "complete": episode.complete,
    }


def without_spans(episode: Episode) -> Episode:
    """Without the count of spans that the store has left out: it counts them itself."""
    counts = {name: n for name, n in episode.calls_without_transition.items() if name != "duplicate_span"}
    return replace(episode, calls_without_transition=counts)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(0, 2**32))
def test_summaries_and_joins_are_those_of_the_assembly(seed: int) -> None:
    rng = random.Random(seed)
    records = random_records(rng)
    expected = {each.rollout_id: each for each in assemble(records) if each.rollout_id}
    arrived = records[:]
    rng.shuffle(arrived)
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder, "traces.db"))
        while arrived:
            batch = [arrived.pop() for _ in range(min(len(arrived), rng.randrange(1, 8)))]
            store.append_many([(each.producer, [to_frame(each.seq, each.record)]) for each in batch])
        listed = {each.rollout_id: each for each in store.list_rollouts(ALL)}
        read = {summary.rollout_id: told for summary, told in store.read_rollouts(ALL)}
        counters = store.stats().counters
        store.close()
    assert listed.keys() == read.keys() == expected.keys()
    for rollout_id, episode in expected.items():
        facts = facts_of(episode)
        assert {name: getattr(listed[rollout_id], name) for name in facts} == facts
        (told,) = assemble(read[rollout_id])
        assert told == without_spans(episode)
    assert counters["rollouts"] == len(expected)
    heads = [each.record for each in records if each.record.span_id]
    held = {(head.trace_id, head.span_id) for head in heads if head.HasField("call")}
    spans = [head for head in heads if head.HasField("otel_span") and head.rollout_id]
    assert counters["duplicate_spans"] == sum((head.trace_id, head.span_id) in held for head in spans)
