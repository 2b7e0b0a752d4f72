"""What belongs together by ids across rollouts, before any of them is assembled.

1. Tokens meet their call by call id.
2. A reward that names a call and no rollout joins the rollout of that call: by call id, else by response id.
   Where calls of several rollouts have the response id (some servers repeat them), nobody can tell which is
   meant: it stays unbound.
3. An OpenTelemetry span whose ids one of our own calls holds tells that call again, and is left out.

The store decides the same (collector/store/sqlite_joins.py), as the records come in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lightning_sdk.mdp.frame import ROLLOUTLESS
from lightning_sdk.mdp.response_ids import response_id
from lightning_sdk.records import Record, Reward, SourcedRecord


@dataclass(slots=True)
class JoinedRollout:
    """All that belongs to one rollout, of all attempts, in no order."""

    items: list[SourcedRecord] = field(default_factory=list)
    # Rewards that named only a call, by the attempt of that call.
    named_rewards: list[tuple[int, SourcedRecord]] = field(default_factory=list)
    duplicate_spans: int = 0


@dataclass(slots=True)
class Joined:
    """Rollouts by id ("" is what happened outside any), and token records by call id."""

    rollouts: dict[str, JoinedRollout]
    tokens: dict[str, list[SourcedRecord]]


def join_records(records: Iterable[SourcedRecord]) -> Joined:
    """Sort records by where they belong; one that comes twice counts once."""
    rollouts: dict[str, JoinedRollout] = defaultdict(JoinedRollout)
    tokens: dict[str, list[SourcedRecord]] = defaultdict(list)
    named: list[SourcedRecord] = []
    spans: list[SourcedRecord] = []
    for item in {(item.producer, item.seq): item for item in records}.values():
        kind = item.record.WhichOneof("body")
        if kind == "tokens":
            tokens[item.record.tokens.call_id].append(item)
        elif names_only_a_call(item.record):
            named.append(item)
        elif kind == "otel_span" and item.record.span_id:
            spans.append(item)
        elif kind not in ROLLOUTLESS:
            rollouts[item.record.rollout_id].items.append(item)
    for attempts in tokens.values():
        attempts.sort(key=lambda item: (item.producer, item.seq))
    if spans:
        _leave_out_duplicates(rollouts, spans)
    if named:
        _join_rewards(rollouts, named)
    return Joined(rollouts, tokens)


def names_only_a_call(record: Record) -> bool:
    """Whether a record is a reward of a call whose rollout its producer did not know."""
    return (
        not record.rollout_id
        and record.HasField("reward")
        and record.reward.bound == Reward.BOUND_CALL
        and record.reward.call_id != ""
    )


def _leave_out_duplicates(rollouts: dict[str, JoinedRollout], spans: Sequence[SourcedRecord]) -> None:
    """Let in the spans that tell something new; count each other one where its call is."""
    holders = {
        (item.record.trace_id, item.record.span_id): rollout_id
        for rollout_id, rollout in rollouts.items()
        for item in rollout.items
        if item.record.span_id and item.record.HasField("call")
    }
    for item in spans:
        holder = holders.get((item.record.trace_id, item.record.span_id))
        if holder is None:
            rollouts[item.record.rollout_id].items.append(item)
        else:
            rollouts[holder].duplicate_spans += 1


def _join_rewards(rollouts: dict[str, JoinedRollout], named: Sequence[SourcedRecord]) -> None:
    # For each id the rollouts that have it, each with the latest attempt in which a call has it.
    by_call: dict[str, Counter[str]] = defaultdict(Counter)
    by_response: dict[str, Counter[str]] = defaultdict(Counter)
    for rollout_id, rollout in rollouts.items():
        for item in rollout.items:
            if rollout_id and item.record.HasField("call"):
                call, attempt = item.record.call, item.record.attempt
                for index, name in ((by_call, call.call_id), (by_response, response_id(call))):
                    if name:
                        index[name][rollout_id] = max(attempt, index[name][rollout_id])
    for item in named:
        name = item.record.reward.call_id
        places = by_call.get(name) or by_response.get(name) or Counter()
        if len(places) == 1:
            ((rollout_id, attempt),) = places.items()
            rollouts[rollout_id].named_rewards.append((attempt, _placed(item, rollout_id)))
        else:
            rollouts[""].items.append(item)


def _placed(item: SourcedRecord, rollout_id: str) -> SourcedRecord:
    """The reward in its rollout; of no attempt, since no Leave counts it."""
    record = Record()
    record.CopyFrom(item.record)
    record.rollout_id, record.attempt = rollout_id, 0
    return SourcedRecord(item.producer, item.seq, record)
