"""Rewards, annotations and handles: how each finds its place.

1. A number or a mapping of numbers; anything else raises ValueError in the caller.
2. call= binds to that call and its scope, whichever rollout it is of; else, inside a scope: to the latest
   finished call of its subtree; after the outermost scope: to the rollout that ended last in the same
   context; rollout_id=: to that rollout.
3. What finds no rollout is kept as unbound, with one warning that names rollout_id=.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults
from lightning_sdk.records import Record, Reward
from lightning_sdk.testing import Capture, capture
from support.client_records import make_call, of_kind, start_call


def rewards(cap: Capture) -> list[Record]:
    return of_kind(cap.records, "reward")


@ls.trace_agent
def solve() -> str | None:
    return make_call()


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0.0),
        (-1.5, -1.5),
        (True, 1.0),
        (Decimal("0.25"), 0.25),
        (Fraction(1, 2), 0.5),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(3), 3.0),
        (numpy.bool_(True), 1.0),
    ],
)
def test_every_kind_of_number_is_a_reward(value: Any, number: float) -> None:
    with capture() as cap, ls.rollout():
        ls.emit_reward(value)
        ls.emit_reward(value, name="format")
    assert [(c.name, c.value) for r in rewards(cap) for c in r.reward.components] == [
        ("reward", number),
        ("format", number),
    ]


def test_a_mapping_gives_named_components() -> None:
    with capture() as cap, ls.rollout():
        ls.emit_reward({"correct": True, "length": -0.25})
    components = rewards(cap)[0].reward.components
    assert {component.name: component.value for component in components} == {"correct": 1.0, "length": -0.25}


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        "1",
        b"1",
        None,
        1j,
        [1],
        10**400,
        Unprintable(),
        {},
        {"a": "1"},
        {"a": float("nan")},
        {1: 1},
        {"": 1},
        {"a": 1e308, "b": 1e308},
        {"a": -1e308, "b": -1e308},
    ],
)
def test_what_is_no_finite_number_raises_in_the_caller_and_records_nothing(value: Any) -> None:
    with capture() as cap, ls.rollout(), pytest.raises(ValueError, match=r"expected|not finite"):
        ls.emit_reward(value)
    assert rewards(cap) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choice": 1}, "needs call="),
        ({"call": "x", "choice": -1}, "index of a choice"),
        ({"call": 3}, "handle from last_call"),
        ({"rollout_id": ""}, "rollout_id=''"),
        ({"reward_id": 7}, "reward_id=7"),
        ({"name": ""}, "name that is not empty"),
        ({"name": "\ud800"}, "UTF-8"),
    ],
)
def test_arguments_that_do_not_go_together_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ls.emit_reward(1, **options)
    with pytest.raises(ValueError, match="goes with a number"):
        ls.emit_reward({"a": 1}, name="b")
    for key in ("\ud800", "x" * 257):
        with pytest.raises(ValueError, match=r"UTF-8|257 characters"):
            ls.emit_reward({key: 1})


def test_inside_a_scope_it_goes_to_the_latest_finished_call_of_the_subtree() -> None:
    ids: dict[str, str | None] = {}

    @ls.trace_agent
    def planner() -> None:
        ids["planner"] = make_call()

    @ls.trace_agent
    def coder() -> None:
        ls.emit_reward(0)  # before any call of this scope
        ids["coder"] = make_call()
        ls.emit_reward(1)

    @ls.trace_agent
    def team() -> None:
        planner()
        coder()
        ls.emit_reward(2)

    with capture() as cap:
        team()
    assert [record.reward.call_id for record in rewards(cap)] == ["", ids["coder"], ids["coder"]]
    assert {record.reward.bound for record in rewards(cap)} == {Reward.BOUND_SCOPE}
    scopes = {record.scope_start.agent: record.scope_id for record in of_kind(cap.records, "scope_start")}
    assert [record.scope_id for record in rewards(cap)] == [
        next(scopes[name] for name in scopes if name.endswith(end)) for end in ("coder", "coder", "team")
    ]


def test_a_call_that_has_not_finished_or_samples_nothing_gets_no_reward() -> None:
    with capture() as cap, ls.rollout():
        finished = make_call()
        open_call = start_call()
        make_call(api="embeddings")
        ls.emit_reward(1)
        assert open_call is not None
        open_call.finish("ok")
        ls.emit_reward(2)
    assert [record.reward.call_id for record in rewards(cap)] == [finished, open_call.call_id]


def test_after_the_outermost_scope_it_goes_to_what_ended_last_in_this_context() -> None:
    with capture() as cap:
        first, last = solve(), solve()
        ls.emit_reward(0.5)
        handle = ls.last_call()
    assert handle is not None
    assert first != last == handle.call_id
    reward = rewards(cap)[0]
    assert (reward.reward.bound, reward.reward.call_id) == (Reward.BOUND_CONTEXT, last)
    assert (reward.rollout_id, reward.scope_id) == (handle.rollout_id, "")


async def test_the_same_holds_in_async_code_task_by_task() -> None:
    @ls.trace_agent
    async def think() -> str | None:
        await asyncio.sleep(0)
        return make_call()

    async def one(score: float) -> tuple[str | None, float]:
        made = await think()
        await asyncio.sleep(0)
        ls.emit_reward(score)
        return made, score

    with capture() as cap:
        pairs = await asyncio.gather(*(one(float(score)) for score in range(5)))
    found = {record.reward.call_id: record.reward.components[0].value for record in rewards(cap)}
    assert found == dict(pairs)
    assert {record.reward.bound for record in rewards(cap)} == {Reward.BOUND_CONTEXT}


def test_the_same_holds_after_a_generator_that_was_used_up_or_closed() -> None:
    @ls.trace_agent
    def stream() -> Iterator[str | None]:
        yield make_call()
        yield make_call()

    with capture() as cap:
        used_up = list(stream())
        ls.emit_reward(1)
        closed = stream()
        first = next(closed)
        closed.close()  # type: ignore[attr-defined]
        ls.emit_reward(2)
    assert [record.reward.call_id for record in rewards(cap)] == [used_up[-1], first]


async def test_the_same_holds_after_an_async_generator() -> None:
    @ls.trace_agent
    async def stream() -> AsyncIterator[str | None]:
        yield make_call()
        yield make_call()

    with capture() as cap:
        made = [call async for call in stream()]
        ls.emit_reward(1)
    assert [record.reward.call_id for record in rewards(cap)] == [made[-1]]


def test_a_handle_names_the_call_and_its_scope_even_from_another_rollout() -> None:
    with capture() as cap:
        solve()
        handle = ls.last_call()
        with ls.rollout():
            make_call()
            ls.emit_reward(1, call=handle, choice=2)
    reward = rewards(cap)[0]
    call = of_kind(cap.records, "call")[0]
    assert handle is not None
    assert reward.reward.bound == Reward.BOUND_CALL
    assert (reward.reward.call_id, reward.reward.choice) == (handle.call_id, 2)
    assert (reward.rollout_id, reward.attempt, reward.scope_id) == (call.rollout_id, 1, call.scope_id)


def test_the_id_in_a_response_names_a_call_of_any_rollout_and_which_is_not_guessed() -> None:
    with capture() as cap, warnings.catch_warnings():
        warnings.simplefilter("error")
        ls.emit_reward(1, call="chatcmpl-8")
        with ls.rollout():
            make_call(response_id="chatcmpl-9")
            ls.emit_reward(1, call="chatcmpl-9")
        ls.emit_reward(1, call="chatcmpl-10")
    assert [record.reward.call_id for record in rewards(cap)] == ["chatcmpl-8", "chatcmpl-9", "chatcmpl-10"]
    assert {(r.rollout_id, r.attempt, r.group_id, r.scope_id) for r in rewards(cap)} == {("", 0, "", "")}
    assert {record.reward.bound for record in rewards(cap)} == {Reward.BOUND_CALL}
    # It is no record of the rollout, so nobody waits for it there.
    assert of_kind(cap.records, "leave")[0].leave.count == len(cap.records) - 3


def test_the_id_in_a_response_beside_a_rollout_stays_in_that_rollout() -> None:
    with capture() as cap:
        with ls.rollout() as run:
            ls.emit_reward(1, call="chatcmpl-1", rollout_id=run.rollout_id)
        ls.emit_reward(2, call="chatcmpl-1", rollout_id="ro_elsewhere")
    assert [r.rollout_id for r in rewards(cap)] == [run.rollout_id, "ro_elsewhere"]
    assert {r.reward.bound for r in rewards(cap)} == {Reward.BOUND_CALL}


def test_rewards_by_the_ids_of_three_responses_after_three_rollouts_reach_each_its_own() -> None:
    with capture() as cap:
        for index in range(3):
            with ls.rollout(task_id=f"t{index}"):
                make_call(response_id=f"chatcmpl-{index}")
        for index in range(3):
            ls.emit_reward(10**index, call=f"chatcmpl-{index}")
    returns = {episode.task_id: episode.return_ for episode in cap.episodes() if episode.task_id}
    assert returns == {"t0": 1.0, "t1": 10.0, "t2": 100.0}


def test_a_rollout_can_be_named_from_anywhere_without_taking_part_in_it() -> None:
    with capture() as cap:
        ls.emit_reward(1, rollout_id="ro_elsewhere", reward_id="human")
        with ls.rollout():
            ls.emit_reward(2, rollout_id="ro_elsewhere")
    first, second = rewards(cap)
    assert first.rollout_id == second.rollout_id == "ro_elsewhere"
    assert {first.reward.bound, second.reward.bound} == {Reward.BOUND_ROLLOUT}
    assert (first.reward.reward_id, second.reward.reward_id) == ("human", "")
    assert [r.rollout_id for r in of_kind(cap.records, "join")] != ["ro_elsewhere"]
    assert len(of_kind(cap.records, "join")) == 1


def test_a_rollout_that_is_named_inside_itself_counts_among_its_records() -> None:
    with capture() as cap, ls.rollout() as run:
        make_call()
        ls.emit_reward(1, rollout_id=run.rollout_id)
    reward = rewards(cap)[0]
    assert (reward.attempt, reward.reward.bound, reward.reward.call_id) == (1, Reward.BOUND_ROLLOUT, "")
    assert of_kind(cap.records, "leave")[0].leave.count == len(cap.records)


def test_without_any_rollout_it_is_kept_unbound_with_one_warning_that_says_what_to_do() -> None:
    with capture() as cap, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ls.emit_reward(1)
        ls.emit_reward(2)
    assert len(caught) == 1
    assert "rollout_id=" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert [(r.rollout_id, r.reward.bound) for r in rewards(cap)] == [("", Reward.BOUND_NONE)] * 2


async def test_a_rollout_that_ended_in_a_child_task_is_not_the_one_of_this_context() -> None:
    with capture() as cap:

        async def child() -> None:
            solve()

        await asyncio.create_task(child())
        with pytest.warns(RuntimeWarning, match="rollout_id="):
            ls.emit_reward(1)
    assert rewards(cap)[0].reward.bound == Reward.BOUND_NONE


def test_annotations_go_to_the_present_rollout_or_the_one_that_ended_last() -> None:
    with capture() as cap:
        with ls.rollout() as run:
            ls.annotate(difficulty=3, where={"a": [1, None]})
        ls.annotate(odd=object)
    notes = of_kind(cap.records, "note")
    assert [record.note.values for record in notes] == [
        b'{"difficulty":3,"where":{"a":[1,null]}}',
        b"""{"odd":"<class 'object'>"}""",
    ]
    assert {record.rollout_id for record in notes} == {run.rollout_id}


def test_an_annotation_without_a_rollout_is_counted_with_a_warning() -> None:
    before = faults.counters().get("annotations_without_rollout", 0)
    with capture() as cap, pytest.warns(RuntimeWarning, match="annotate"):
        ls.annotate(a=1)
    assert cap.records == []
    assert faults.counters()["annotations_without_rollout"] == before + 1


def test_last_call_is_none_where_there_was_none() -> None:
    with capture():
        assert ls.last_call() is None
        with ls.rollout():
            assert ls.last_call() is None


@ls.trace_agent
def solve_here() -> None:
    make_call()


@ls.trace_agent
async def solve_in_a_task() -> None:
    make_call()


def in_a_loop() -> None:
    asyncio.run(solve_in_a_task())


def in_a_thread() -> None:
    thread = threading.Thread(target=solve_here)
    thread.start()
    thread.join()


def in_a_pool() -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: solve_here(), range(3)))


@pytest.mark.parametrize("later", [in_a_loop, in_a_thread, in_a_pool])
def test_a_reward_after_a_rollout_that_ended_elsewhere_warns_once_where_it_went(
    later: Callable[[], None],
) -> None:
    with capture() as cap, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solve_here()
        later()
        ls.emit_reward(1)
        ls.emit_reward(2)
        ls.emit_reward(3, rollout_id="ro_named")
        assert [str(warning.message) for warning in caught if "rollout_id=" in str(warning.message)]
        assert len(caught) == 1
        assert caught[0].filename == __file__
    # It is bound as ever.
    first = of_kind(cap.records, "scope_start")[0].rollout_id
    assert [reward.rollout_id for reward in rewards(cap)] == [first, first, "ro_named"]


def test_rewards_of_tasks_and_threads_that_look_after_their_own_do_not_warn() -> None:
    async def task(mine: asyncio.Event, other: asyncio.Event) -> None:
        await solve_in_a_task()
        mine.set()
        await other.wait()
        ls.emit_reward(1)

    async def both() -> None:
        one, other = asyncio.Event(), asyncio.Event()
        await asyncio.gather(task(one, other), task(other, one))

    barrier = threading.Barrier(3)

    def thread() -> None:
        solve_here()
        barrier.wait()
        ls.emit_reward(1)

    with capture() as cap, warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(both())
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: thread(), range(3)))
        solve_here()
        ls.emit_reward(1)
        with ls.rollout():
            in_a_loop()
            ls.emit_reward(1)
    assert len({reward.rollout_id for reward in rewards(cap)}) == 7
