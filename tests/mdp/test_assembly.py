"""A rollout's records become an episode.

1. Project, task and metadata come from its start, the outcome from its end; notes are merged in order.
2. Only the final attempt counts. What was lost leaves what is known.
3. Exactly one of terminated and truncated is true at the last call, none elsewhere.
4. Complete: it has ended, and all who joined have left with as many records as are here.
5. The order of arrival, and records that come twice, change nothing.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.mdp import Episode, assemble, group_episodes
from lightning_sdk.records import OUTCOMES, SourcedRecord
from support.record_factory import SECOND, Tape, chat_body, chat_request


def assembled(*tapes: Tape) -> Episode:
    (episode,) = assemble(record for tape in tapes for record in tape.records)
    return episode


def test_the_start_tells_what_the_rollout_is() -> None:
    tape = Tape()
    tape.start("task-7", metadata={"level": 1}, split="train")
    tape.call("a")
    tape.finish()
    episode = assembled(tape)
    assert (episode.rollout_id, episode.project, episode.run_id) == ("ro_1", "demo", "run_1")
    assert (episode.task_id, episode.group_id, episode.split) == ("task-7", "group", "train")
    assert (episode.attempt, episode.outcome, episode.error, episode.complete) == (1, "succeeded", None, True)
    # join at 1 s, start at 2 s, call at 3 s, end at 4 s.
    assert (episode.start_ns, episode.end_ns) == (2 * SECOND, 4 * SECOND)
    (transition,) = episode.transitions
    assert (transition.task_id, transition.split, transition.metadata) == ("task-7", "train", {"level": 1})


def test_notes_are_merged_into_the_metadata_in_order() -> None:
    tape = Tape()
    tape.start(metadata={"a": 1, "b": 1})
    tape.note(b=2, c=2)
    tape.note(c=3)
    tape.write(note={"values": b"not json"})
    assert assembled(tape).metadata == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("ended", "outcome", "terminated", "reason"),
    [
        ("ok", "succeeded", True, None),
        ("error", "failed", True, None),
        ("cancelled", "cancelled", False, "cancelled"),
        ("closed_early", "cancelled", False, "cancelled"),
        ("abandoned", "cancelled", False, "cancelled"),
        (None, "running", False, "running"),
    ],
)
def test_the_end_decides_the_last_call(
    ended: Any, outcome: str, terminated: bool, reason: str | None
) -> None:
    tape = Tape()
    tape.start()
    tape.call("a")
    tape.call("b")
    if ended is not None:
        tape.end(ended)
    episode = assembled(tape)
    assert episode.outcome == outcome
    first, last = episode.transitions
    assert (first.next_call_id, first.terminated, first.truncated) == ("b", False, False)
    assert (last.next_call_id, last.terminated, last.truncated) == (None, terminated, not terminated)
    assert last.truncation_reason == reason
    assert (first.step, last.step) == (0, 1)


def test_a_last_answer_that_was_cut_truncates_a_rollout_that_succeeded() -> None:
    tape = Tape()
    tape.start()
    tape.call("a", chat_body("long", finish_reason="length"))
    tape.call("b", chat_body("longer", finish_reason="length"))
    tape.finish()
    first, last = assembled(tape).transitions
    assert (first.truncated, last.truncated, last.truncation_reason) == (False, True, "length")


def test_a_last_answer_that_was_cut_does_not_hide_a_failure() -> None:
    tape = Tape()
    tape.start()
    tape.call("a", chat_body("long", finish_reason="length"))
    tape.end("error", ("ValueError", "no answer"))
    episode = assembled(tape)
    assert (episode.outcome, episode.error) == ("failed", "ValueError: no answer")
    assert episode.transitions[0].terminated


def test_an_ending_that_this_version_does_not_know_is_lost() -> None:
    tape = Tape()
    tape.start()
    tape.call("a")
    tape.end()
    tape.records[-1].record.rollout_end.outcome = 77  # type: ignore[assignment]
    assert assembled(tape).transitions[0].truncation_reason == "lost"


def test_only_the_final_attempt_counts() -> None:
    tape = Tape()
    tape.start()
    tape.call("first try")
    tape.reward(-1.0, "call", call="first try")
    tape.end("error")
    tape.attempt = 2
    tape.start(metadata={"retried": True})
    tape.call("second try")
    tape.finish()
    episode = assembled(tape)
    assert (episode.attempt, episode.outcome, episode.return_) == (2, "succeeded", None)
    assert [each.call_id for each in episode.transitions] == ["second try"]
    assert episode.metadata == {"retried": True}


def test_a_reward_that_knows_no_attempt_is_about_the_final_one() -> None:
    tape = Tape(attempt=2)
    tape.start()
    tape.call("a")
    other = Tape("other", attempt=0, second=100)
    other.reward(1.0, "rollout")
    assert assembled(tape, other).return_ == 1.0


def test_a_rollout_whose_start_was_lost_keeps_what_is_known() -> None:
    tape = Tape()
    tape.start()
    tape.call("a")
    tape.finish()
    tape.records = [item for item in tape.records if not item.record.HasField("rollout_start")]
    episode = assembled(tape)
    assert (episode.project, episode.run_id, episode.task_id) == ("", "", None)
    assert (episode.group_id, episode.outcome, episode.complete) == ("group", "succeeded", False)
    assert len(episode.transitions) == 1


def test_a_rollout_without_a_group_is_one_of_its_own() -> None:
    tape = Tape(group="")
    tape.start()
    assert assembled(tape).group_id == "ro_1"


def test_a_producer_that_has_not_left_keeps_the_rollout_incomplete() -> None:
    parent, child = Tape("parent"), Tape("child")
    parent.start()
    child.join(parent)
    child.call("a")
    parent.finish()
    assert not assembled(parent, child).complete
    child.leave()
    assert assembled(parent, child).complete


@pytest.mark.parametrize("body", ["rollout_start", "call", "join"])
def test_a_missing_record_keeps_the_rollout_incomplete(body: str) -> None:
    tape = Tape()
    tape.start()
    tape.call("a")
    tape.finish()
    tape.records = [item for item in tape.records if not item.record.HasField(body)]  # type: ignore[arg-type]
    assert not assembled(tape).complete


def test_a_rollout_without_an_end_is_incomplete() -> None:
    tape = Tape()
    tape.start()
    tape.leave()
    assert not assembled(tape).complete


def test_a_producer_that_joins_again_has_to_leave_again() -> None:
    tape, worker = Tape(), Tape("worker")
    tape.start()
    for _ in range(2):
        worker.join(tape)
        assert not assembled(tape, worker).complete
        worker.leave()
    tape.finish()
    assert assembled(tape, worker).complete


def test_a_reward_after_leaving_keeps_the_rollout_complete() -> None:
    tape = Tape()
    tape.start()
    tape.call("a")
    tape.finish()
    tape.reward(1.0, "context")
    episode = assembled(tape)
    assert (episode.complete, episode.transitions[0].reward) == (True, 1.0)


def test_a_reward_about_the_rollout_from_one_of_its_own_producers_is_not_counted() -> None:
    tape = Tape()
    tape.start()
    tape.call("a")
    # join, start and call make three; the leave after the end is the fifth that counts.
    tape.reward(1.0, "rollout").attempt = 0
    tape.end()
    tape.leave(count=5)
    episode = assembled(tape)
    assert (episode.complete, episode.return_) == (True, 1.0)


def test_tokens_meet_their_call_by_either_id() -> None:
    tape = Tape()
    tape.call("a", chat_body("x", id="re_a"))
    tape.call("b", chat_body("y", id="re_b"), endpoint_call_id="their b")
    endpoint = Tape("endpoint")
    endpoint.tokens("a", [1], [2], response_id="re_a", version=4)
    endpoint.tokens("their b", [3], [4], response_id="re_b", version=5)
    told = {each.call_id: each for each in assembled(endpoint, tape).transitions}
    assert [list(told[name].response_token_ids or ()) for name in "ab"] == [[2], [4]]
    assert [told[name].policy_version for name in "ab"] == [4, 5]
    assert [told[name].drop_reason for name in "ab"] == [None, None]


def test_tokens_alone_make_no_episode() -> None:
    endpoint = Tape()
    endpoint.tokens("a", [1], [2])
    assert assemble(endpoint.records) == []


def test_observation_action_and_sampling_are_of_the_call() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    tape = Tape()
    tape.call(
        "a", chat_body("4"), request=chat_request("2+2?", tools=tools, temperature=0, stop=["\n"], user="u")
    )
    (transition,) = assembled(tape).transitions
    assert transition.observation == {
        "messages": [{"role": "user", "content": "2+2?"}],
        "tools": tools,
        "tool_choice": None,
        "response_format": None,
        "chat_template_kwargs": None,
    }
    assert transition.action == {"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}
    assert transition.sampling == {"requested": {"temperature": 0, "stop": ["\n"]}, "effective": None}


def test_a_call_without_an_answer_is_a_transition_without_an_action() -> None:
    tape = Tape()
    tape.call("a", b"", outcome="error", request=chat_request("another"))
    tape.call("b", b"<html>")
    tape.call("c", b"{}", api="responses")
    told = [(each.action, each.drop_reason, each.choice) for each in assembled(tape).transitions]
    assert told == [(None, "error", 0), (None, "unreadable", 0), (None, "unreadable", 0)]


def test_embeddings_are_counted_and_take_no_step() -> None:
    tape = Tape()
    tape.call("a")
    tape.call("vector", b"{}", api="embeddings")
    tape.call("b")
    tape.reward(1.0, "scope", call="vector")
    episode = assembled(tape)
    assert [(each.step, each.call_id, each.next_call_id) for each in episode.transitions] == [
        (0, "a", "b"),
        (1, "b", None),
    ]
    assert episode.calls_without_transition == {"embedding": 1}
    assert [each.reward for each in episode.transitions] == [0.0, 1.0]


@pytest.mark.parametrize("inherited", ["cancelled", "closed_early", "abandoned", "error"])
@pytest.mark.parametrize("child_first", [True, False])
def test_a_call_that_a_forked_child_recorded_again_counts_once(inherited: Any, child_first: bool) -> None:
    parent, child = Tape("parent"), Tape("child")
    parent.start()
    child.join(parent)
    begun = parent.tick()
    child.call("a", b"", begun=begun, outcome=inherited)
    child.write(tool_call={"tool_call_id": "tc_add", "outcome": OUTCOMES[inherited]})
    child.leave()
    parent.call("a", begun=begun)
    parent.tool("add", b"1", b"2")
    parent.finish()
    episode = assembled(*((child, parent) if child_first else (parent, child)))
    assert [(each.call_id, each.outcome, each.drop_reason) for each in episode.transitions] == [
        ("a", "succeeded", "no_token_ids")
    ]
    assert [(tool.tool_call_id, tool.outcome) for tool in episode.tools] == [("tc_add", "ok")]
    assert episode.calls_without_transition == {"duplicate_call": 1, "duplicate_tool_call": 1}
    assert episode.complete


def test_of_equally_good_recordings_the_first_counts_and_calls_without_an_id_are_different_ones() -> None:
    tape = Tape()
    tape.call("a", chat_body("first"))
    tape.call("a", chat_body("second"))
    tape.call("")
    tape.call("")
    episode = assembled(tape)
    told = [(each.call_id, (each.action or {})["message"]["content"]) for each in episode.transitions]
    assert told == [("a", "first"), ("", "ok"), ("", "ok")]
    assert episode.calls_without_transition == {"duplicate_call": 1}


def test_of_several_starts_the_earliest_counts_and_of_several_ends_the_latest() -> None:
    tape, other = Tape("z"), Tape("a", second=1)
    tape.start("first")
    tape.end("error")
    other.start("second")
    other.end("ok")
    for tapes in ((tape, other), (other, tape)):
        episode = assembled(*tapes)
        assert (episode.task_id, episode.start_ns) == ("first", 2 * SECOND)
        assert (episode.outcome, episode.end_ns) == ("succeeded", 4 * SECOND)


def test_what_clients_counted_is_no_part_of_any_rollout() -> None:
    tape = Tape()
    tape.start()
    tape.finish()
    expected = assembled(tape)
    tape.write(counters={"values": {"drops": 1}})
    assert assembled(tape) == expected


def test_scopes_and_tools_are_told() -> None:
    tape = Tape()
    tape.open_scope("outer", agent="planner")
    tape.open_scope("inner", agent="worker", parent="outer")
    tape.tool("add", b'{"x": 1}', b"<not json>", scope="inner")
    tape.close_scope("inner", "error")
    episode = assembled(tape)
    told = [(each.scope_id, each.parent_scope_id, each.agent, each.outcome) for each in episode.scopes]
    assert told == [("outer", None, "planner", None), ("inner", "outer", "worker", "error")]
    assert [each.end_ns for each in episode.scopes] == [None, 4 * SECOND]
    (tool,) = episode.tools
    assert (tool.name, tool.arguments, tool.result, tool.scope_id) == ("add", {"x": 1}, "<not json>", "inner")


def test_what_happened_outside_any_rollout_is_an_episode_without_an_id() -> None:
    outside = Tape(rollout="", group="")
    outside.call("a")
    inside = Tape("q", second=100)
    inside.start()
    first, second = assemble([*inside.records, *outside.records])
    assert (first.rollout_id, first.group_id, len(first.transitions)) == (None, "", 1)
    assert first.transitions[0].rollout_id is None
    assert second.rollout_id == "ro_1"


def test_a_reward_that_belongs_to_nothing_makes_no_episode() -> None:
    tape = Tape(rollout="", group="")
    tape.reward(1.0, "none")
    assert assemble(tape.records) == []


def test_episodes_come_by_start_and_group_by_their_id() -> None:
    tapes = [
        Tape(f"p{at}", rollout=f"ro_{at}", group=group, second=second)
        for at, (group, second) in enumerate([("x", 300), ("y", 100), ("x", 200)])
    ]
    for tape in tapes:
        tape.start()
    episodes = assemble(record for tape in tapes for record in tape.records)
    assert [each.rollout_id for each in episodes] == ["ro_1", "ro_2", "ro_0"]
    groups = group_episodes(episodes)
    assert [(g.group_id, [e.rollout_id for e in g.episodes]) for g in groups] == [
        ("y", ["ro_1"]),
        ("x", ["ro_2", "ro_0"]),
    ]


def rich_records() -> list[SourcedRecord]:
    """Two rollouts: nested scopes, two processes, retries, choices, rewards of every kind, tokens, notes."""
    parent, child, endpoint, judge = Tape("parent"), Tape("child", second=3), Tape("endpoint"), Tape("judge")
    other = Tape("other", rollout="ro_2", second=5)
    parent.start(metadata={"a": 1})
    parent.open_scope("outer")
    parent.call("a", chat_body("x", id="re_a"), scope="outer")
    child.join(parent)
    child.open_scope("inner", parent="outer")
    child.engine_call("many", [1, 2, 3], [4], [5], scope="inner")
    child.reward(0.5, scope="inner", id="r")
    child.reward(0.75, scope="inner", id="r")
    child.close_scope("inner")
    child.leave()
    parent.note(a=2)
    parent.reward(1.0, scope="outer")
    parent.tool("add", b"{}", b"1", scope="outer")
    parent.engine_call("b", [1, 2, 3, 4], [6], scope="outer")
    parent.close_scope("outer")
    parent.note(a=3)
    parent.finish()
    parent.reward(0.1, "context")
    judge.second = 10**6
    judge.reward(0.2, "rollout", id="judge")
    for at in range(2):
        endpoint.tokens("a", [1, 2], [3], response_id=f"re_{'ab'[at]}", version=at)
    other.start()
    other.call("c", b"", outcome="error")
    tapes = (parent, child, endpoint, judge, other)
    return [record for tape in tapes for record in tape.records]


@settings(deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False), st.integers(0, 10))
def test_the_order_of_arrival_and_duplicates_change_nothing(shuffler: random.Random, twice: int) -> None:
    records = rich_records()
    expected = assemble(records)
    arrived = records + shuffler.sample(records, twice)
    shuffler.shuffle(arrived)
    assert assemble(arrived) == expected


def test_the_rich_example_is_what_it_should_be() -> None:
    episode, other = assemble(rich_records())
    told = [(e.call_id, e.choice, e.parent_call_id, e.reward, e.drop_reason) for e in episode.transitions]
    # 0.75 replaced 0.5 and goes to the used choice of "many"; 1.0 goes there too, since "many" (at 6 s) was
    # the last to finish before it; 0.1 and 0.2 go to the last call. No parent: the policy of "a" is another.
    assert told == [
        ("a", 0, None, 0.0, None),
        ("many", 0, None, 1.75, None),
        ("many", 1, None, 0.0, "unused_choice"),
        ("b", 0, "many", pytest.approx(0.3), None),
    ]
    assert episode.metadata == {"a": 3}
    assert episode.complete
    assert episode.return_ == pytest.approx(2.05)
    assert (other.outcome, other.complete, other.return_) == ("running", False, None)
