"""Records to episodes: a pure function of the set of records, whatever the order in which they arrive."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lightning_sdk.mdp.apis import WITHOUT_TRANSITION
from lightning_sdk.mdp.binding import bind_rewards
from lightning_sdk.mdp.calls import CallView, decode_call, error_text
from lightning_sdk.mdp.episode import Episode, Group
from lightning_sdk.mdp.events import decode_scopes, decode_tool
from lightning_sdk.mdp.frame import MEMBERS_ONLY, end_key, outcome_of, start_key
from lightning_sdk.mdp.joining import JoinedRollout, join_records
from lightning_sdk.mdp.json_text import parse_object
from lightning_sdk.mdp.order import find_concurrent, find_lineage, order_records
from lightning_sdk.mdp.otel import call_of_span
from lightning_sdk.mdp.repeats import without_repeats
from lightning_sdk.mdp.rewards import exact_sum
from lightning_sdk.mdp.transitions import build_transitions
from lightning_sdk.records import Record, SourcedRecord, Tokens

# Records that make a rollout; a reward or a note alone does not where no rollout is named.
_HAPPENINGS: Final = frozenset({"scope_start", "call", "tool_call", "otel_span"})


def assemble(records: Iterable[SourcedRecord]) -> list[Episode]:
    """Assemble rollouts.

    Args:
        records: all records of any number of rollouts, and the token records of their calls, in any order; a
            record that comes twice counts once. `joining` says what is joined across rollouts. Of a rollout
            that was attempted again only the final attempt is assembled.

    Returns:
        One episode a rollout, by start. What happened outside any rollout makes one more, with `rollout_id`
        None. Nothing in the records raises: what cannot be read has a `drop_reason`.
    """
    joined = join_records(records)
    outside = joined.rollouts.pop("", None)
    rollouts = list(joined.rollouts.items())
    if outside is not None and any(item.record.WhichOneof("body") in _HAPPENINGS for item in outside.items):
        rollouts.append(("", outside))
    episodes = [_assemble_rollout(rollout_id, rollout, joined.tokens) for rollout_id, rollout in rollouts]
    return sorted(episodes, key=lambda episode: (episode.start_ns, episode.rollout_id or ""))


def group_episodes(episodes: Iterable[Episode]) -> list[Group]:
    """Episodes by `group_id`: groups in the order of their first episode, episodes in the order given."""
    groups: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.group_id].append(episode)
    return [Group(group_id=group_id, episodes=tuple(members)) for group_id, members in groups.items()]


def _assemble_rollout(
    rollout_id: str, rollout: JoinedRollout, tokens: Mapping[str, Sequence[SourcedRecord]]
) -> Episode:
    attempt = max((item.record.attempt for item in rollout.items), default=0) or 1
    # Attempt 0: who wrote it did not know which one; it is about the final one.
    items = [item for item in rollout.items if item.record.attempt in (0, attempt)]
    items += [item for called, item in rollout.named_rewards if called in (0, attempt)]
    lineage = find_lineage(items)
    told = order_records(items, lineage)
    start, end_at = _find_start(told), _find_end(told)
    end = None if end_at is None else told[end_at].record
    ordered, left_out = without_repeats(told)
    left_out["duplicate_span"] += rollout.duplicate_spans
    actions, without_transition = _read_calls(ordered, tokens)
    scopes = decode_scopes(ordered)
    rewards = bind_rewards(ordered, actions, scopes)
    concurrent = find_concurrent([(call.producer, call.order) for call in actions], lineage)
    counted = [reward.event.value for reward in rewards if not reward.event.replaced]
    begun = start.rollout_start if start is not None else None
    episode = Episode(
        rollout_id=rollout_id or None,
        project=begun.project if begun else "",
        run_id=begun.run_id if begun else "",
        # Without a group it is one of its own.
        group_id=min((item.record.group_id for item in told if item.record.group_id), default=rollout_id),
        task_id=(begun.task_id or None) if begun else None,
        split=(begun.split or None) if begun else None,
        attempt=attempt,
        outcome="running" if end is None else outcome_of(end),
        truncation_reason=None if end is None else end.rollout_end.truncation_reason or None,
        error=error_text(end.rollout_end.error)
        if end is not None and end.rollout_end.HasField("error")
        else None,
        start_ns=start.start_ns if start is not None else _earliest(told),
        end_ns=end.end_ns if end is not None else None,
        complete=end is not None and _all_left(items, attempt),
        metadata=_read_metadata(start, ordered),
        transitions=(),
        scopes=scopes,
        tools=[decode_tool(item) for item in ordered if item.record.HasField("tool_call")],
        rewards=[reward.event for reward in rewards],
        return_=exact_sum(counted) if counted else None,
        calls_without_transition=dict(+(left_out + without_transition)),
    )
    late = _find_late(told, end_at, actions)
    return replace(episode, transitions=build_transitions(episode, actions, concurrent, late, rewards))


def _find_start(items: Sequence[SourcedRecord]) -> Record | None:
    starts = [item for item in items if item.record.HasField("rollout_start")]
    found = min(starts, key=lambda item: (start_key(item.record), item.producer, item.seq), default=None)
    return None if found is None else found.record


def _find_end(items: Sequence[SourcedRecord]) -> int | None:
    """The position of the end that counts."""
    ends = [at for at, item in enumerate(items) if item.record.HasField("rollout_end")]
    return max(
        ends, key=lambda at: (end_key(items[at].record), items[at].producer, items[at].seq), default=None
    )


def _find_late(ordered: Sequence[SourcedRecord], end: int | None, calls: Sequence[CallView]) -> list[bool]:
    """For each call whether it comes after the end in the order of the rollout."""
    after = {(item.producer, item.seq) for item in ordered[end + 1 :]} if end is not None else set()
    return [(call.producer, call.seq) in after for call in calls]


def _read_metadata(start: Record | None, ordered: Sequence[SourcedRecord]) -> dict[str, Any]:
    """What the start told, with the notes merged in."""
    metadata: dict[str, Any] = {}
    if start is not None:
        metadata.update(parse_object(start.rollout_start.metadata) or {})
    for item in ordered:
        if item.record.HasField("note"):
            metadata.update(parse_object(item.record.note.values) or {})
    return metadata


def _earliest(items: Sequence[SourcedRecord]) -> int:
    return min((item.record.start_ns for item in items if item.record.start_ns), default=0)


def _read_calls(
    ordered: Sequence[SourcedRecord], tokens: Mapping[str, Sequence[SourcedRecord]]
) -> tuple[list[CallView], Counter[str]]:
    """Calls that can be actions, and how many others there are by why they cannot."""
    passed_over: Counter[str] = Counter()
    actions = []
    for item in ordered:
        if item.record.HasField("otel_span"):
            told = call_of_span(item)
            if told is None:
                continue
            item = told
        elif not item.record.HasField("call"):
            continue
        reason = WITHOUT_TRANSITION.get(item.record.call.api)
        if reason is not None:
            passed_over[reason] += 1
        else:
            actions.append(decode_call(item, _tokens_of(item, tokens)))
    return actions, passed_over


def _tokens_of(item: SourcedRecord, tokens: Mapping[str, Sequence[SourcedRecord]]) -> list[Tokens]:
    call = item.record.call
    ids = dict.fromkeys(name for name in (call.call_id, call.endpoint_call_id) if name)
    return [told.record.tokens for name in ids for told in tokens.get(name, ())]


def _all_left(items: Sequence[SourcedRecord], attempt: int) -> bool:
    """Whether producers joined an attempt, and every one has left with as many records as are here."""
    by_producer: dict[bytes, list[SourcedRecord]] = defaultdict(list)
    for item in items:
        # One that names no attempt is about the rollout, not part of it: no Leave counts it.
        if item.record.attempt == attempt:
            by_producer[item.producer].append(item)
    joined = any(item.record.HasField("join") for members in by_producer.values() for item in members)
    return joined and all(_has_left(members) for members in by_producer.values())


def _has_left(members: Sequence[SourcedRecord]) -> bool:
    joined = max((item.seq for item in members if item.record.HasField("join")), default=None)
    if joined is None:
        # A reward from elsewhere needs no Join.
        return not any(item.record.WhichOneof("body") in MEMBERS_ONLY for item in members)
    leave = max(
        (item for item in members if item.record.HasField("leave")), key=lambda item: item.seq, default=None
    )
    if leave is None or leave.seq < joined:
        return False
    return sum(item.seq <= leave.seq for item in members) == leave.record.leave.count
