"""What every store must do: read.

Rollouts are found by project, run, task and prefix, with all records and the tokens of the calls.
"""

from __future__ import annotations

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.collector.store.base import Store
from lightning_sdk.records import Record
from support.frames import START_NS, Telling, rollout_id, whole_rollout
from support.stores import ALL, add, names, summary_of


class ReadingContract:
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
