"""What every store must do: join by ids what crosses rollouts, whatever comes first.

Rewards by the call that they name, spans that tell again of our own calls, calls that were recorded twice. What
clients counted is summed.
"""

from __future__ import annotations

import pytest

from lightning_sdk.collector.store.base import Store
from lightning_sdk.records import Outcome
from support.frames import Telling, rollout_id, whole_rollout
from support.stores import ALL, add, names, summary_of


class JoiningContract:
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
