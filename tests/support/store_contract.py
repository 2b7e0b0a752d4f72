"""What every store must do, as tests. A store's test module subclasses `StoreContract`, with `open_store`.

1. Durable and idempotent: a record is known by (producer, number), and stored once.
2. Nothing is lost quietly: gaps hold back the ack; what is refused or lost leaves a tombstone and a count.
3. A summary tells what the records tell, in any order of arrival.
4. What crosses rollouts is joined by ids, whatever comes first: rewards by the call that they name, spans that
   tell again of our own calls, calls that were recorded twice. What clients counted is summed.
5. Reading finds rollouts by project, run, task and prefix, with all records and the tokens of the calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from lightning_sdk._proto.ingest_pb2 import Frame
from lightning_sdk._proto.read_pb2 import RolloutQuery, RolloutSummary
from lightning_sdk.collector.store.base import Store
from lightning_sdk.errors import StoreBusyError, StoreError, WireError
from lightning_sdk.records import Outcome, Record
from support.frames import START_NS, Telling, note_frame, producer_id, rollout_id, to_frame, whole_rollout

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


class StoreContract:
    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Opens the same store, again and again."""
        raise NotImplementedError("a store's test class supplies this fixture")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Iterator[Store]:
        store = open_store()
        yield store
        store.close()

    # 1. Durable and idempotent

    def test_an_ack_tells_the_last_number_without_a_gap(self, store: Store) -> None:
        ack = store.append(P, [note_frame(1), note_frame(2)])
        assert (ack.producer, ack.committed_through, list(ack.refusals)) == (P, 2, [])
        assert store.append(P, [note_frame(3)]).committed_through == 3
        assert store.high_water(P) == 3

    def test_a_producer_that_was_only_asked_about_is_unknown(self, store: Store) -> None:
        assert store.append(P, []).committed_through == 0
        assert store.high_water(P) == 0
        assert store.stats().counters["producers"] == 0

    def test_what_comes_again_changes_nothing(self, store: Store) -> None:
        telling = whole_rollout("a")
        add(store, telling)
        before = [(s.SerializeToString(), r) for s, r in store.read_rollouts(ALL)]
        before[0][1].sort(key=lambda sourced: sourced.seq)
        revision = summary_of(store, "a").revision
        ack = store.append(telling.producer, telling.frames)
        assert (ack.committed_through, list(ack.refusals)) == (9, [])
        assert store.stats().counters["records"] == 9
        assert store.stats().counters["duplicates"] == 9
        assert summary_of(store, "a").revision == revision

    def test_what_comes_again_within_one_batch_is_stored_once(self, store: Store) -> None:
        assert store.append(P, [note_frame(1), note_frame(1), note_frame(2)]).committed_through == 2
        assert store.stats().counters["records"] == 2

    def test_many_batches_are_one_transaction_with_an_ack_each(self, store: Store) -> None:
        other = producer_id("other")
        acks = store.append_many(
            [(P, [note_frame(1)]), (other, [note_frame(2)]), (P, [note_frame(2)]), (P, [])]
        )
        assert [(ack.producer, ack.committed_through) for ack in acks] == [(P, 1), (other, 0), (P, 2), (P, 2)]

    def test_everything_is_there_after_reopening(self, open_store: OpenStore) -> None:
        store = open_store()
        add(store, whole_rollout("a"))
        store.append(P, [note_frame(2), Frame(seq=3, lost_reason="gone")])
        seen = [rollout.SerializeToString() for rollout in store.read_stored(ALL)]
        counters = dict(store.stats().counters)
        store.close()
        store = open_store()
        try:
            assert [rollout.SerializeToString() for rollout in store.read_stored(ALL)] == seen
            assert dict(store.stats().counters) == counters
            assert store.append(P, [note_frame(1)]).committed_through == 3
        finally:
            store.close()

    def test_a_store_that_is_open_cannot_be_opened_again(self, store: Store, open_store: OpenStore) -> None:
        with pytest.raises(StoreBusyError, match=r"in use by process \d+"):
            open_store()

    def test_a_closed_store_says_so(self, open_store: OpenStore) -> None:
        store = open_store()
        store.close()
        store.close()
        with pytest.raises(StoreError, match="is closed"):
            store.append(P, [note_frame(1)])

    # 2. Nothing is lost quietly

    def test_a_gap_holds_back_the_ack_until_it_is_filled(self, store: Store) -> None:
        assert (
            store.append(P, [note_frame(1), note_frame(3), note_frame(4), note_frame(6)]).committed_through
            == 1
        )
        assert store.append(P, [note_frame(2)]).committed_through == 4
        assert store.append(P, [note_frame(5)]).committed_through == 6
        assert store.stats().counters["records"] == 6

    def test_any_order_of_arrival_ends_in_the_same_ack(self, store: Store) -> None:
        frames = [note_frame(seq) for seq in range(1, 41)]
        random.Random(7).shuffle(frames)
        for first in range(0, 40, 5):
            ack = store.append(P, frames[first : first + 5])
        assert ack.committed_through == 40

    def test_another_record_under_a_taken_number_is_an_integrity_error(self, store: Store) -> None:
        store.append(P, [note_frame(1, b'{"a": 1}')])
        ack = store.append(P, [note_frame(1, b'{"a": 2}'), note_frame(2)])
        assert ack.committed_through == 2
        assert [(refusal.seq, "another record" in refusal.reason) for refusal in ack.refusals] == [(1, True)]
        assert store.stats().counters["integrity_errors"] == 1
        assert store.append(P, [note_frame(1, b'{"a": 1}')]).refusals == []

    @pytest.mark.parametrize(
        ("frame", "reason"),
        [
            (Frame(seq=1, checksum=1, record=note_frame(1).record), "the checksum of"),
            (Frame(seq=1, checksum=0x8587D865, record=b"abcde"), "not a lightning.v1.Record"),
            (Frame(seq=1, checksum=0, record=b""), "without a body"),
            (to_frame(1, Record(order=1 << 63, note={"values": b""})), "beyond 63 bits"),
            (to_frame(1, Record(rollout_id="x" * 300, note={"values": b""})), "300 characters"),
            (to_frame(1, Record(call={"call_id": "x" * 300})), "a call id of"),
        ],
    )
    def test_what_is_no_record_leaves_a_tombstone(self, store: Store, frame: Frame, reason: str) -> None:
        ack = store.append(P, [frame, note_frame(2)])
        assert ack.committed_through == 2
        (refusal,) = ack.refusals
        assert refusal.seq == 1
        assert reason in refusal.reason
        counters = store.stats().counters
        assert (counters["refused"], counters["tombstones"], counters["records"]) == (1, 1, 1)
        (again,) = store.append(P, [frame]).refusals
        assert again == refusal
        assert store.stats().counters["refused"] == 1

    @pytest.mark.parametrize("seq", [0, 1 << 63, (1 << 64) - 1])
    def test_a_number_that_no_record_can_have_is_refused(self, store: Store, seq: int) -> None:
        frame = note_frame(1)
        frame.seq = seq
        ack = store.append(P, [frame, note_frame(1)])
        assert ack.committed_through == 1
        assert [refusal.seq for refusal in ack.refusals] == [seq]
        assert store.stats().counters["refused"] == 1

    def test_a_lost_record_leaves_a_tombstone_and_what_follows_is_acked(self, store: Store) -> None:
        ack = store.append(P, [note_frame(1), Frame(seq=2, lost_reason="damaged on disk"), note_frame(3)])
        assert (ack.committed_through, list(ack.refusals)) == (3, [])
        counters = store.stats().counters
        assert (counters["lost"], counters["tombstones"], counters["records"]) == (1, 1, 2)

    def test_a_lost_record_that_is_found_takes_its_place(self, store: Store) -> None:
        store.append(P, [Frame(seq=1, lost_reason="damaged on disk")])
        store.append(P, [Frame(seq=1, lost_reason="damaged on disk")])
        store.append(P, [note_frame(1)])
        counters = store.stats().counters
        assert (counters["lost"], counters["tombstones"]) == (1, 0)
        assert (counters["recovered"], counters["records"], counters["duplicates"]) == (1, 1, 1)

    def test_a_stored_record_is_not_lost_by_word_of_mouth(self, store: Store) -> None:
        store.append(P, [note_frame(1)])
        store.append(P, [Frame(seq=1, lost_reason="damaged on disk")])
        assert (store.stats().counters["records"], store.stats().counters["tombstones"]) == (1, 0)

    def test_a_producer_id_of_another_length_is_refused_whole(self, store: Store) -> None:
        with pytest.raises(WireError, match="16 bytes, not 3"):
            store.append_many([(P, [note_frame(1)]), (b"abc", [note_frame(1)])])
        assert store.stats().counters["records"] == 0

    def test_records_of_no_rollout_are_counted(self, store: Store) -> None:
        telling = Telling()
        telling.reward("")
        telling.tokens("ca_1")
        add(store, telling)
        assert store.stats().counters["unbound"] == 1

    # 3. Summaries

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

    # 4. Joined by ids

    @pytest.mark.parametrize("name", ["ca_b", "chatcmpl-b"])
    @pytest.mark.parametrize("late", ["the reward", "the call", "neither"])
    def test_a_reward_that_names_only_a_call_joins_its_rollout(
        self, store: Store, name: str, late: str
    ) -> None:
        agent, judge = Telling("agent"), Telling("judge")
        for rollout in ("a", "b", "c"):
            agent.start(rollout)
            agent.call(rollout, f"ca_{rollout}", response=b'{"id": "chatcmpl-%s"}' % rollout.encode())
            agent.end(rollout)
        judge.reward("", 0.5, call=name)
        if late == "neither":
            store.append_many([(judge.producer, judge.frames), (agent.producer, agent.frames)])
        else:
            add(store, *((agent, judge) if late == "the reward" else (judge, agent)))
        found = {rollout: summary_of(store, rollout) for rollout in "abc"}
        assert [found[rollout].rewards for rollout in "abc"] == [0, 1, 0]
        assert [found[rollout].complete for rollout in "abc"] == [True] * 3
        assert found["b"].revision == (2 if late == "the reward" else 1)
        assert store.stats().counters["unbound"] == 0
        rewards = {
            summary.rollout_id: [
                each.record.reward.call_id for each in records if each.record.HasField("reward")
            ]
            for summary, records in store.read_rollouts(ALL)
        }
        assert rewards == {rollout_id("a"): [], rollout_id("b"): [name], rollout_id("c"): []}

    def test_a_response_id_that_calls_of_several_rollouts_have_names_none(self, store: Store) -> None:
        agent, judge = Telling("agent"), Telling("judge")
        agent.call("a", "ca_a", response=b'{"id": "same"}')
        judge.reward("", call="same")
        add(store, agent, judge)
        assert (summary_of(store, "a").rewards, store.stats().counters["unbound"]) == (1, 0)
        agent.call("b", "ca_b", response=b'{"id": "same"}')
        add(store, agent)
        assert (summary_of(store, "a").rewards, summary_of(store, "b").rewards) == (0, 0)
        assert store.stats().counters["unbound"] == 1
        # A call id is nobody's but its call's.
        agent.call("c", "same")
        add(store, agent)
        assert (summary_of(store, "c").rewards, store.stats().counters["unbound"]) == (1, 0)

    def test_a_reward_of_a_call_of_an_earlier_attempt_is_not_one_of_the_latest(self, store: Store) -> None:
        agent, judge = Telling("agent"), Telling("judge")
        agent.call("a", "ca_first", attempt=1)
        agent.call("a", "ca_second", attempt=2)
        judge.reward("", call="ca_first")
        add(store, agent, judge)
        assert summary_of(store, "a").rewards == 0
        judge.reward("", call="ca_second")
        add(store, judge)
        assert summary_of(store, "a").rewards == 1

    @pytest.mark.parametrize("first", ["span", "call", "together"])
    def test_a_span_of_one_of_our_own_calls_belongs_to_no_rollout(self, store: Store, first: str) -> None:
        span, other = (b"t" * 16, b"1" * 8), (b"t" * 16, b"2" * 8)
        agent, one, two = Telling("agent"), Telling("one"), Telling("two")
        agent.call("ours", "ca_1", span=span)
        one.otel_span("trace", *span)
        two.otel_span("another trace", *other)
        if first == "together":
            store.append_many([(each.producer, each.frames) for each in (one, agent, two)])
        else:
            add(store, *((one, agent, two) if first == "span" else (agent, one, two)))
        assert set(names(store, ALL, ["ours", "trace", "another trace"])) == {"ours", "another trace"}
        assert [len(records) for _, records in store.read_rollouts(ALL)] == [1, 1]
        counters = store.stats().counters
        assert (counters["duplicate_spans"], counters["rollouts"], counters["records"]) == (1, 2, 3)
        add(store, one)  # the exporter tries again
        counters = store.stats().counters
        assert (counters["duplicate_spans"], counters["duplicates"], counters["rollouts"]) == (1, 1, 2)

    def test_a_call_that_was_recorded_twice_counts_once(self, store: Store) -> None:
        parent, child = whole_rollout("a"), Telling("child")
        parent.tool("a", "tc_1")
        child.record("a", join={"pid": 2})
        child.call("a", "ca_a", outcome=Outcome.OUTCOME_ABANDONED)
        child.tool("a", "tc_1")
        child.leave("a")
        add(store, child, parent)
        summary = summary_of(store, "a")
        assert (summary.calls, summary.tool_calls, summary.complete) == (1, 2, True)
        ((_, records),) = store.read_rollouts(ALL)
        assert len(records) == len(parent.frames) + len(child.frames)

    def test_what_clients_counted_last_is_summed(self, store: Store) -> None:
        one, two = Telling("one"), Telling("two")
        one.counters(drops=1)
        one.counters(drops=5, **{"error.integration openai": 1})
        two.counters(drops=10, late=2)
        store.append(one.producer, one.frames[1:])
        store.append(one.producer, one.frames[:1])  # written earlier, though it comes later
        add(store, two)
        counters = store.stats().counters
        told = {name: value for name, value in counters.items() if name.startswith("client.")}
        assert told == {"client.drops": 15, "client.late": 2, "client.error.integration openai": 1}
        assert (counters["unbound"], counters["rollouts"], counters["records"]) == (0, 0, 3)

    def test_what_clients_counted_cannot_grow_the_statistics_without_end(self, store: Store) -> None:
        for index in range(3):
            telling = Telling(f"p{index}")
            telling.counters(**{f"n{number:04}": (1 << 64) - 1 for number in range(1000)})
            telling.counters(**{f"n{number:04}": (1 << 64) - 1 for number in range(1000)}, **{"x" * 1000: 1})
            add(store, telling)
        told = {n: value for n, value in store.stats().counters.items() if n.startswith("client.")}
        assert set(told.values()) == {(1 << 64) - 1}
        assert max(map(len, told)) < 200
        assert len(told) <= 100

    # 5. Reading

    def test_rollouts_are_listed_newest_first_and_read_oldest_first(self, store: Store) -> None:
        add(
            store,
            *(whole_rollout(name, at_ns=START_NS + at) for name, at in (("b", 200), ("a", 100), ("c", 300))),
        )
        known = ["a", "b", "c"]
        assert names(store, ALL, known) == ["c", "b", "a"]
        assert names(store, RolloutQuery(limit=2), known) == ["c", "b"]
        read = [summary.rollout_id for summary, _ in store.read_rollouts(RolloutQuery(limit=2))]
        assert read == [rollout_id("b"), rollout_id("c")]

    def test_conditions_are_joined_by_and(self, store: Store) -> None:
        add(
            store,
            whole_rollout("a", project="one", task_id="t1", run_id="r1"),
            whole_rollout("b", project="one", task_id="t2", run_id="r1"),
            whole_rollout("c", project="two", task_id="t1", run_id="r2"),
        )
        known = ["a", "b", "c"]
        assert names(store, RolloutQuery(project="one", task_id="t1"), known) == ["a"]
        assert names(store, RolloutQuery(run_id="r2"), known) == ["c"]
        assert names(store, RolloutQuery(project="two", run_id="r1"), known) == []

    def test_prefixes_find_rollouts_with_and_without_their_kind(self, store: Store) -> None:
        add(store, whole_rollout("a"), whole_rollout("b"))
        a, b = rollout_id("a"), rollout_id("b")
        for prefixes, expected in (
            ([a[:8]], {"a"}),
            ([a.removeprefix("ro_")[:6]], {"a"}),
            ([b], {"b"}),
            ([a[:8], b[:8]], {"a", "b"}),
            (["ro_"], {"a", "b"}),
            (["%"], set()),
            (["'"] * 5000, set()),
        ):
            found = names(store, RolloutQuery(rollout_id_prefixes=prefixes), ["a", "b"])
            assert set(found) == expected
            assert len(found) == len(expected)

    def test_calls_find_their_rollouts_with_and_without_their_kind(self, store: Store) -> None:
        a, b, ended = Telling("p"), Telling("q"), Telling("r")
        for telling, name, call_id in ((a, "a", "ca_12"), (b, "b", "ca_13"), (ended, "a", "ca_20")):
            telling.record(name, join={"pid": 1})
            telling.call(name, call_id)
        # What is not a call of a rollout: a tool call, tokens.
        b.record("b", tool_call={"tool_call_id": "ca_14"})
        b.record("", tokens={"call_id": "ca_15"})
        add(store, a, b, ended)
        for prefixes, expected in (
            (["ca_12"], {"a"}),
            (["13"], {"b"}),
            (["1"], {"a", "b"}),
            (["ca_2", "nothing"], {"a"}),
            (["ca_14"], set()),
            (["ca_15"], set()),
            (["%"], set()),
        ):
            query = RolloutQuery(call_id_prefixes=prefixes)
            found = names(store, query, ["a", "b"])
            assert set(found) == expected
            assert len(found) == len(expected)
            assert len(list(store.read_rollouts(query))) == len(expected)

    def test_a_rollout_is_read_with_all_of_its_records_as_they_were_written(self, store: Store) -> None:
        parent, child = whole_rollout("a"), Telling("child")
        child.record("a", join={"pid": 2})
        child.leave("a")
        add(store, parent, child, whole_rollout("b"))
        (found,) = store.read_rollouts(RolloutQuery(rollout_id_prefixes=[rollout_id("a")]))
        summary, records = found
        assert summary == summary_of(store, "a")
        written = {
            (telling.producer, frame.seq): Record.FromString(frame.record)
            for telling in (parent, child)
            for frame in telling.frames
        }
        assert {(each.producer, each.seq): each.record for each in records} == written
        assert len(records) == len(written)
        starts = [each.record.start_ns for each in records]
        assert starts == sorted(starts)

    def test_tokens_come_with_the_rollout_of_their_call(self, store: Store) -> None:
        agent, engine = Telling("agent"), Telling("engine")
        engine.tokens("ca_told")
        engine.tokens("ca_told")  # the client retried
        engine.tokens("ca_own")
        engine.tokens("ca_of_another")
        agent.start("a")
        agent.call("a", "ca_told")
        agent.call("a", "ca_untold", endpoint_call_id="ca_own")
        add(store, engine, agent)
        ((_, records),) = store.read_rollouts(ALL)
        found = [each.record.tokens.call_id for each in records if each.record.HasField("tokens")]
        assert sorted(found) == ["ca_own", "ca_told", "ca_told"]

    def test_more_rollouts_than_a_page_are_all_found(self, store: Store) -> None:
        batches = []
        for index in range(600):
            telling = Telling(f"p{index}", at_ns=START_NS + index)
            telling.record(f"r{index}", join={"pid": 1})
            batches.append((telling.producer, telling.frames))
        store.append_many(batches)
        found = names(store, ALL, [f"r{index}" for index in range(600)])
        assert found == [f"r{index}" for index in reversed(range(600))]

    def test_an_iterator_that_is_left_open_does_not_hold_up_the_writer(self, store: Store) -> None:
        add(store, whole_rollout("a"), whole_rollout("b"))
        listing, reading = store.list_rollouts(ALL), store.read_rollouts(ALL)
        next(listing)
        next(reading)
        add(store, whole_rollout("c"))
        assert len(list(listing)) == 1
        assert len(list(reading)) == 1

    def test_a_fresh_store_counts_nothing(self, store: Store) -> None:
        stats = store.stats()
        assert set(stats.counters.values()) == {0}
        assert {
            "records",
            "rollouts",
            "producers",
            "duplicates",
            "integrity_errors",
            "tombstones",
            "refused",
        } <= set(stats.counters)
        assert list(store.list_rollouts(ALL)) == []
        assert list(store.read_rollouts(ALL)) == []
