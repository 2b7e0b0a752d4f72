"""Call order.

1. Within a producer the order in which calls were sent decides, not that in which they ended, nor the clock.
2. A producer that was carried into the rollout comes after the moment of its parent that it was carried from.
3. What neither orders is ordered by start time, and marked.
"""

from __future__ import annotations

import itertools

from lightning_sdk.mdp import Episode, assemble
from support.record_factory import Tape


def order_of(episode: Episode) -> list[tuple[str, str]]:
    return [(each.call_id, each.order) for each in episode.transitions]


def assembled(*tapes: Tape) -> Episode:
    (episode,) = assemble(record for tape in tapes for record in tape.records)
    return episode


def test_calls_are_ordered_by_when_they_were_sent() -> None:
    tape = Tape()
    slow = tape.tick()
    tape.call("quick")
    tape.call("slow", begun=slow)
    assert order_of(assembled(tape)) == [("slow", "causal"), ("quick", "causal")]


def test_a_clock_that_is_set_back_changes_nothing_within_a_producer() -> None:
    tape = Tape(second=1000)
    tape.call("first")
    tape.second = 0
    tape.call("second")
    assert order_of(assembled(tape)) == [("first", "causal"), ("second", "causal")]


def test_a_child_comes_after_the_moment_it_was_spawned_though_its_clock_is_behind() -> None:
    parent = Tape("parent", second=1000)
    parent.start()
    parent.call("before")
    child = Tape("child", second=0)
    child.join(parent)
    child.call("inside")
    assert order_of(assembled(parent, child)) == [("before", "causal"), ("inside", "causal")]


def test_what_the_parent_did_after_the_spawn_is_concurrent_with_the_child() -> None:
    # before is sent at 3 s; the child calls at 12 s; the parent goes on at 21 s.
    parent = Tape("parent")
    parent.start()
    parent.call("before")
    child = Tape("child", second=10)
    child.join(parent)
    child.call("inside")
    parent.second = 20
    parent.call("after")
    told = order_of(assembled(parent, child))
    assert told == [("before", "causal"), ("inside", "clock"), ("after", "clock")]


def test_two_children_of_one_moment_are_concurrent_with_each_other_only() -> None:
    parent = Tape("parent")
    parent.start()
    parent.call("plan")
    one, two = Tape("one", second=10), Tape("two", second=11)
    for child in (one, two):
        child.join(parent)
        child.call(f"{child.producer.decode().rstrip(chr(0))} starts")
        child.second += 5
        child.call(f"{child.producer.decode().rstrip(chr(0))} goes on")
    # one: 12 s and 18 s; two: 13 s and 19 s.
    assert order_of(assembled(parent, one, two)) == [
        ("plan", "causal"),
        ("one starts", "clock"),
        ("two starts", "clock"),
        ("one goes on", "clock"),
        ("two goes on", "clock"),
    ]


def test_a_grandchild_comes_after_what_led_to_it_and_is_concurrent_with_the_rest() -> None:
    parent, child, grandchild = Tape("a", second=100), Tape("b", second=50), Tape("c", second=0)
    parent.start()
    parent.call("a1")
    child.join(parent)
    child.call("b1")
    grandchild.join(child)
    grandchild.call("c1")
    assert order_of(assembled(parent, child, grandchild)) == [
        ("a1", "causal"),
        ("b1", "causal"),
        ("c1", "causal"),
    ]
    # b2 is after b1 and knows nothing of c1; a1 led to all of them.
    child.call("b2")
    told = dict(order_of(assembled(parent, child, grandchild)))
    assert told == {"a1": "causal", "b1": "causal", "b2": "clock", "c1": "clock"}


def test_producers_whose_origin_is_unknown_are_ordered_by_clock() -> None:
    one, two = Tape("one"), Tape("two", second=10)
    one.call("first")
    two.call("second")
    assert order_of(assembled(two, one)) == [("first", "clock"), ("second", "clock")]


def test_producers_that_claim_to_come_from_each_other_are_ordered_by_clock() -> None:
    one, two, three = Tape("one"), Tape("two", second=10), Tape("three", second=20)
    one.join(two, moment=99)
    two.join(one, moment=99)
    three.join(three, moment=99)
    for tape in (one, two, three):
        tape.call(tape.producer.decode())
    assert [order for _, order in order_of(assembled(one, two, three))] == ["clock"] * 3


def test_a_hundred_generations_of_producers_keep_their_order() -> None:
    # Each is an hour behind its parent.
    tapes = [Tape("0", second=10**6)]
    tapes[0].start()
    tapes[0].call("call 0")
    for generation in range(1, 100):
        tape = Tape(str(generation), second=10**6 - 3600 * generation)
        tape.join(tapes[-1])
        tape.call(f"call {generation}")
        tapes.append(tape)
    episode = assembled(*reversed(tapes))
    assert order_of(episode) == [(f"call {generation}", "causal") for generation in range(100)]


def test_the_order_of_arrival_of_three_producers_changes_nothing() -> None:
    parent = Tape("parent")
    parent.start()
    parent.call("before")
    children = [Tape("x", second=5), Tape("y", second=5)]
    for child in children:
        child.join(parent)
        child.call(child.producer.decode())
    seen = [assembled(*tapes) for tapes in itertools.permutations([parent, *children])]
    assert all(episode == seen[0] for episode in seen)
