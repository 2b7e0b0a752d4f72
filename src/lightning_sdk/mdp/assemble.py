"""Records to episodes: a pure function of the set of records, whatever the order in which they arrive."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_sdk.mdp.apis import WITHOUT_TRANSITION
from lightning_sdk.mdp.binding import bind_rewards
from lightning_sdk.mdp.calls import CallView, decode_call, error_text
from lightning_sdk.mdp.episode import Episode, Group, RolloutOutcome
from lightning_sdk.mdp.events import decode_scopes, decode_tool
from lightning_sdk.mdp.json_text import parse_object
from lightning_sdk.mdp.order import find_concurrent, find_lineage, order_records
from lightning_sdk.mdp.otel import call_of_span
from lightning_sdk.mdp.rewards import exact_sum
from lightning_sdk.mdp.transitions import RolloutFacts, build_transitions
from lightning_sdk.records import Outcome, SourcedRecord, Tokens

_OUTCOMES: Final[Mapping[int, RolloutOutcome]] = {
    Outcome.OUTCOME_OK: "succeeded",
    Outcome.OUTCOME_ERROR: "failed",
    Outcome.OUTCOME_CANCELLED: "cancelled",
    Outcome.OUTCOME_CLOSED_EARLY: "cancelled",
    Outcome.OUTCOME_ABANDONED: "cancelled",
}
# Records that only a producer which joined can have written: without its Join something is missing.
_MEMBERS_ONLY: Final = frozenset(
    {"rollout_start", "rollout_end", "leave", "scope_start", "scope_end", "call", "tool_call"}
)
# Records that make a rollout; a reward or a note alone does not where no rollout is named.
_HAPPENINGS: Final = frozenset({"scope_start", "call", "tool_call", "otel_span"})


def assemble(records: Iterable[SourcedRecord]) -> list[Episode]:
    """Assemble rollouts.

    Args:
        records: all records of any number of rollouts, and the token records of their calls, in any order; a
            record that comes twice counts once. Of a rollout that was attempted again only the final attempt
            is assembled.

    Returns:
        One episode a rollout, by start. What happened outside any rollout makes one more, with `rollout_id`
        None. Nothing in the records raises: what cannot be read has a `drop_reason`.
    """
    tokens: dict[str, list[SourcedRecord]] = defaultdict(list)
    rollouts: dict[str, list[SourcedRecord]] = defaultdict(list)
    for item in {(item.producer, item.seq): item for item in records}.values():
        if item.record.HasField("tokens"):
            tokens[item.record.tokens.call_id].append(item)
        else:
            rollouts[item.record.rollout_id].append(item)
    for attempts in tokens.values():
        attempts.sort(key=lambda item: (item.producer, item.seq))
    if not any(item.record.WhichOneof("body") in _HAPPENINGS for item in rollouts.get("", ())):
        rollouts.pop("", None)
    episodes = [_assemble_rollout(rollout_id, items, tokens) for rollout_id, items in rollouts.items()]
    return sorted(episodes, key=lambda episode: (episode.start_ns, episode.rollout_id or ""))


def group_episodes(episodes: Iterable[Episode]) -> list[Group]:
    """Episodes by `group_id`: groups in the order of their first episode, episodes in the order given."""
    groups: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.group_id].append(episode)
    return [Group(group_id=group_id, episodes=tuple(members)) for group_id, members in groups.items()]


def _assemble_rollout(
    rollout_id: str, items: Sequence[SourcedRecord], tokens: Mapping[str, Sequence[SourcedRecord]]
) -> Episode:
    attempt = max((item.record.attempt for item in items), default=0) or 1
    # Attempt 0: who wrote it did not know which one; it is about the final one.
    items = [item for item in items if item.record.attempt in (0, attempt)]
    lineage = find_lineage(items)
    ordered = order_records(items, lineage)
    frame = _read_frame(rollout_id, attempt, ordered)
    actions, passed_over = _read_calls(ordered, tokens)
    scopes = decode_scopes(ordered)
    rewards = bind_rewards(ordered, actions, scopes)
    concurrent = find_concurrent([(call.producer, call.order) for call in actions], lineage)
    counted = [reward.event.value for reward in rewards if not reward.event.replaced]
    return Episode(
        rollout_id=frame.facts.rollout_id,
        project=frame.facts.project,
        run_id=frame.facts.run_id,
        group_id=frame.facts.group_id,
        task_id=frame.facts.task_id,
        split=frame.facts.split,
        attempt=attempt,
        outcome=frame.facts.outcome,
        error=frame.error,
        start_ns=frame.start_ns,
        end_ns=frame.end_ns,
        complete=frame.end_ns is not None and _all_left(items, attempt),
        metadata=frame.facts.metadata,
        transitions=build_transitions(frame.facts, actions, concurrent, rewards),
        scopes=scopes,
        tools=[decode_tool(item) for item in ordered if item.record.HasField("tool_call")],
        rewards=[reward.event for reward in rewards],
        return_=exact_sum(counted) if counted else None,
        calls_without_transition=passed_over,
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    """How a rollout began and ended."""

    facts: RolloutFacts
    start_ns: int
    end_ns: int | None
    error: str | None


def _read_frame(rollout_id: str, attempt: int, ordered: Sequence[SourcedRecord]) -> _Frame:
    start = next((item.record for item in ordered if item.record.HasField("rollout_start")), None)
    ends = [item.record for item in ordered if item.record.HasField("rollout_end")]
    end = ends[-1] if ends else None
    metadata: dict[str, Any] = {}
    if start is not None:
        metadata.update(parse_object(start.rollout_start.metadata) or {})
    for item in ordered:
        if item.record.HasField("note"):
            metadata.update(parse_object(item.record.note.values) or {})
    outcome: RolloutOutcome = "running"
    if end is not None:
        # An ending that this version does not know is as good as none.
        outcome = _OUTCOMES.get(end.rollout_end.outcome, "lost")
    begun = start.rollout_start if start is not None else None
    facts = RolloutFacts(
        project=begun.project if begun else "",
        run_id=begun.run_id if begun else "",
        # Without a group it is one of its own.
        group_id=next((item.record.group_id for item in ordered if item.record.group_id), rollout_id),
        rollout_id=rollout_id or None,
        task_id=(begun.task_id or None) if begun else None,
        attempt=attempt,
        outcome=outcome,
        split=(begun.split or None) if begun else None,
        metadata=metadata,
    )
    failed = end is not None and end.rollout_end.HasField("error")
    return _Frame(
        facts=facts,
        start_ns=start.start_ns if start is not None else min(item.record.start_ns for item in ordered),
        end_ns=end.end_ns if end is not None else None,
        error=error_text(end.rollout_end.error) if end is not None and failed else None,
    )


def _read_calls(
    ordered: Sequence[SourcedRecord], tokens: Mapping[str, Sequence[SourcedRecord]]
) -> tuple[list[CallView], dict[str, int]]:
    """Calls that can be actions, and how many others there are by why they cannot."""
    passed_over: Counter[str] = Counter()
    # A call that we recorded ourselves while an OpenTelemetry span was open may be told by that span again.
    own_spans = {
        (item.record.trace_id, item.record.span_id)
        for item in ordered
        if item.record.HasField("call") and item.record.span_id
    }
    actions = []
    for item in ordered:
        if item.record.HasField("otel_span"):
            told = call_of_span(item)
            if told is None:
                continue
            if (told.record.trace_id, told.record.span_id) in own_spans:
                passed_over["duplicate_span"] += 1
                continue
            item = told
        elif not item.record.HasField("call"):
            continue
        reason = WITHOUT_TRANSITION.get(item.record.call.api)
        if reason is not None:
            passed_over[reason] += 1
        else:
            actions.append(decode_call(item, _tokens_of(item, tokens)))
    return actions, dict(passed_over)


def _tokens_of(item: SourcedRecord, tokens: Mapping[str, Sequence[SourcedRecord]]) -> list[Tokens]:
    call = item.record.call
    ids = dict.fromkeys(name for name in (call.call_id, call.endpoint_call_id) if name)
    return [told.record.tokens for name in ids for told in tokens.get(name, ())]


def _all_left(items: Sequence[SourcedRecord], attempt: int) -> bool:
    """Whether every producer of an attempt has left with as many records as are here."""
    by_producer: dict[bytes, list[SourcedRecord]] = defaultdict(list)
    for item in items:
        # One that names no attempt is about the rollout, not part of it: no Leave counts it.
        if item.record.attempt == attempt:
            by_producer[item.producer].append(item)
    return all(_has_left(members) for members in by_producer.values())


def _has_left(members: Sequence[SourcedRecord]) -> bool:
    joined = max((item.seq for item in members if item.record.HasField("join")), default=None)
    if joined is None:
        # A reward from elsewhere needs no Join.
        return not any(item.record.WhichOneof("body") in _MEMBERS_ONLY for item in members)
    leave = max(
        (item for item in members if item.record.HasField("leave")), key=lambda item: item.seq, default=None
    )
    if leave is None or leave.seq < joined:
        return False
    return sum(item.seq <= leave.seq for item in members) == leave.record.leave.count
