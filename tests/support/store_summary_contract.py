"""What every store must do: sum up. A summary tells what the records tell, in any order of arrival."""

from __future__ import annotations

import random

import pytest

from lightning_sdk._proto.read_pb2 import RolloutSummary
from lightning_sdk.collector.store.base import Store
from lightning_sdk.records import Outcome, Record
from support.frames import START_NS, Telling, producer_id, rollout_id, to_frame, whole_rollout
from support.stores import add, summary_of


class SummaryContract:
    def test_a_summary_tells_of_the_rollout(self, store: Store) -> None:
        telling = whole_rollout("a", project="demo", run_id="run_1", task_id="t1", split="train")
        add(store, telling)
        assert summary_of(store, "a") == RolloutSummary(
            rollout_id=rollout_id("a"),
            project="demo",
            run_id="run_1",
            group_id="group of a",
            task_id="t1",
            split="train",
            attempt=1,
            start_ns=START_NS + 2,
            end_ns=START_NS + 8,
            outcome="succeeded",
            root_agent="solver",
            calls=1,
            tool_calls=1,
            rewards=1,
            complete=True,
            revision=1,
        )

    def test_a_summary_is_the_same_whatever_the_order_of_arrival(self, store: Store) -> None:
        telling = whole_rollout("a", task_id="t1")
        add(store, telling)
        expected = summary_of(store, "a")
        shuffled = list(whole_rollout("a", producer="another", task_id="t1").frames)
        random.Random(3).shuffle(shuffled)
        renamed = []
        for frame in shuffled:
            record = Record.FromString(frame.record)
            record.rollout_id = rollout_id("b")
            renamed.append(to_frame(frame.seq, record))
        for frame in renamed:
            store.append(producer_id("another"), [frame])
        found = summary_of(store, "b")
        found.rollout_id, found.revision = expected.rollout_id, expected.revision
        assert found == expected

    @pytest.mark.parametrize(
        ("outcome", "expected"),
        [
            (Outcome.OUTCOME_OK, "succeeded"),
            (Outcome.OUTCOME_ERROR, "failed"),
            (Outcome.OUTCOME_CANCELLED, "cancelled"),
            (Outcome.OUTCOME_CLOSED_EARLY, "cancelled"),
            (Outcome.OUTCOME_ABANDONED, "cancelled"),
        ],
    )
    def test_the_outcome_is_that_of_the_end(self, store: Store, outcome: Outcome, expected: str) -> None:
        telling = Telling()
        telling.start("a")
        add(store, telling)
        assert (summary_of(store, "a").outcome, summary_of(store, "a").end_ns) == ("running", 0)
        telling.end("a", outcome=outcome)
        add(store, telling)
        assert summary_of(store, "a").outcome == expected

    def test_what_was_cut_off_is_truncated_and_an_end_that_knows_nothing_gives_way(
        self, store: Store
    ) -> None:
        telling = Telling()
        telling.start("a")
        telling.record("a", rollout_end={"outcome": Outcome.OUTCOME_OK, "truncation_reason": "timeout"})
        add(store, telling)
        assert summary_of(store, "a").outcome == "truncated"
        ended_ns = summary_of(store, "a").end_ns
        telling.record("a", rollout_end={"outcome": Outcome.OUTCOME_UNSPECIFIED})
        add(store, telling)
        assert (summary_of(store, "a").outcome, summary_of(store, "a").end_ns) == ("truncated", ended_ns)

    def test_it_is_incomplete_while_a_record_that_was_written_is_missing(self, store: Store) -> None:
        telling = whole_rollout("a")
        store.append(telling.producer, telling.frames[:3] + telling.frames[4:])
        assert (summary_of(store, "a").outcome, summary_of(store, "a").complete) == ("succeeded", False)
        store.append(telling.producer, [telling.frames[3]])
        assert summary_of(store, "a").complete

    def test_it_is_incomplete_while_another_producer_is_in_it(self, store: Store) -> None:
        parent, child = whole_rollout("a"), Telling("child")
        child.record("a", join={"pid": 2})
        add(store, child, parent)
        assert not summary_of(store, "a").complete
        child.call("a", "ca_child")
        child.leave("a")
        add(store, child)
        assert summary_of(store, "a").complete

    def test_it_is_incomplete_while_the_join_of_a_producer_is_missing(self, store: Store) -> None:
        child = Telling("child")
        child.record("a", join={"pid": 2})
        child.call("a", "ca_child")
        add(store, whole_rollout("a"))
        store.append(child.producer, child.frames[1:])
        assert not summary_of(store, "a").complete

    def test_a_reward_of_a_producer_that_never_joined_leaves_it_complete(self, store: Store) -> None:
        judge = Telling("judge")
        judge.reward("a", 0.5)
        add(store, whole_rollout("a"), judge)
        assert summary_of(store, "a").complete

    def test_a_producer_that_joined_again_must_leave_again(self, store: Store) -> None:
        telling = whole_rollout("a")
        telling.record("a", join={"pid": 1})
        add(store, telling)
        assert not summary_of(store, "a").complete
        telling.leave("a")
        add(store, telling)
        assert summary_of(store, "a").complete

    def test_a_late_reward_does_not_stand_for_a_missing_record(self, store: Store) -> None:
        telling = whole_rollout("a")
        telling.reward("a", 0.5)
        store.append(telling.producer, telling.frames[:3] + telling.frames[4:])
        assert not summary_of(store, "a").complete

    def test_a_late_reward_raises_the_revision_of_a_complete_rollout(self, store: Store) -> None:
        telling = whole_rollout("a")
        add(store, telling)
        telling.reward("a", 0.5)
        add(store, telling)
        summary = summary_of(store, "a")
        assert (summary.complete, summary.rewards, summary.revision) == (True, 2, 2)

    def test_late_tokens_raise_the_revision_of_the_rollout_that_made_the_call(self, store: Store) -> None:
        engine = Telling("engine")
        engine.tokens("ca_a")
        add(store, whole_rollout("a"), engine)
        assert summary_of(store, "a").revision == 2

    def test_a_summary_is_of_the_latest_attempt(self, store: Store) -> None:
        first, second = Telling("first"), Telling("second", at_ns=START_NS + 1000)
        first.start("a")
        first.call("a", "ca_1")
        first.end("a", outcome=Outcome.OUTCOME_ERROR)
        second.start("a", attempt=2)
        add(store, second, first)
        summary = summary_of(store, "a")
        assert (summary.attempt, summary.outcome, summary.calls) == (2, "running", 0)
        second.end("a", attempt=2)
        add(store, second)
        summary = summary_of(store, "a")
        assert (summary.outcome, summary.complete) == ("succeeded", True)
