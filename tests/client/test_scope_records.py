"""Rollouts and scopes as records: who begins, who nests, who joins and leaves, and how each ends.

1. The outermost trace_agent is a rollout; those inside are agents in it.
2. Join comes first, Leave last with the number of the producer's records, once no scope is open.
3. Concurrent rollouts do not mix, in tasks and in threads.
4. Cancellation and interruption are not errors, and pass unchanged.
5. A task's group is the same wherever it is computed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults, journal
from lightning_sdk.errors import ConfigError
from lightning_sdk.testing import capture
from support.client_records import bodies, make_call, of_kind, start_call

OK, ERROR, CANCELLED = 1, 2, 3


@ls.trace_agent
def inner() -> None:
    make_call()


@ls.trace_agent
def outer() -> None:
    inner()
    make_call()


def test_the_outermost_agent_is_the_rollout_and_the_others_are_in_it() -> None:
    with capture() as cap:
        outer()
    assert bodies(cap.records) == [
        "join",
        "rollout_start",
        "scope_start",
        "scope_start",
        "call",
        "scope_end",
        "call",
        "scope_end",
        "rollout_end",
        "leave",
    ]
    assert len({sourced.record.rollout_id for sourced in cap.records}) == 1
    first, second = of_kind(cap.records, "scope_start")
    assert first.scope_start.parent_scope_id == ""
    assert second.scope_start.parent_scope_id == first.scope_id
    assert [record.call.agent for record in of_kind(cap.records, "call")] == ["inner", "outer"]
    assert of_kind(cap.records, "leave")[0].leave.count == 10


def test_orders_are_unique_and_follow_the_beginnings() -> None:
    with capture() as cap:
        outer()

        @ls.trace_agent
        def slow() -> None:
            first = start_call()
            make_call()
            assert first is not None
            first.finish("ok")

        slow()
    orders = [sourced.record.order for sourced in cap.records]
    assert len(set(orders)) == len(orders)
    calls = of_kind(cap.records, "call")[2:]
    assert calls[0].order > calls[1].order


def test_a_rollout_block_holds_several_agents_and_tells_its_id() -> None:
    with capture() as cap:
        with ls.rollout(task_id=7, metadata={"level": 2, "odd": object}) as run:
            assert ls.current_rollout() is not None
            outer()
            inner()
        assert ls.current_rollout() is None
    start = of_kind(cap.records, "rollout_start")
    assert [record.rollout_id for record in start] == [run.rollout_id]
    assert start[0].rollout_start.task_id == "7"
    assert start[0].rollout_start.metadata == b"""{"level":2,"odd":"<class 'object'>"}"""
    assert [r.scope_start.agent for r in of_kind(cap.records, "scope_start")] == ["outer", "inner", "inner"]
    assert bodies(cap.records)[-2:] == ["rollout_end", "leave"]
    assert len(of_kind(cap.records, "leave")) == 1


async def test_a_rollout_block_works_in_async_code() -> None:
    with capture() as cap:
        async with ls.rollout() as run:
            await asyncio.sleep(0)
            inner()
    assert {sourced.record.rollout_id for sourced in cap.records} == {run.rollout_id}


def test_a_rollout_inside_a_rollout_is_independent_of_it() -> None:
    with capture() as cap, ls.rollout() as around:
        with ls.rollout() as within:
            inner()
        inner()
    calls = of_kind(cap.records, "call")
    assert [record.rollout_id for record in calls] == [within.rollout_id, around.rollout_id]
    assert len(of_kind(cap.records, "leave")) == 2


def test_rollouts_of_one_task_share_a_group_and_others_stand_alone() -> None:
    with capture() as cap:
        for options in (
            {"task_id": "a"},
            {"task_id": "a"},
            {"task_id": "a", "round": 1},
            {"task_id": "a", "split": "test"},
            {"task_id": "b"},
            {"group_id": "mine", "task_id": "a"},
            {},
        ):
            with ls.rollout(run_id="run", **options):  # type: ignore[arg-type]
                pass
    starts = of_kind(cap.records, "rollout_start")
    groups = [record.group_id for record in starts]
    assert groups[0] == groups[1] == "gr_61984b1ce5acddabc90b71215f1429eb"
    assert len(set(groups[1:5])) == 4
    assert groups[5] == "mine"
    assert groups[6] == starts[6].rollout_id


def test_a_rollout_block_is_entered_once() -> None:
    with capture():
        run = ls.rollout()
        with run:
            pass
        with pytest.raises(RuntimeError, match="was entered before"), run:
            pass


@pytest.mark.parametrize(
    "options",
    [{"task_id": ""}, {"task_id": 1.5}, {"split": 3}, {"attempt": 0}, {"round": -1}, {"metadata": [1]}],
)
def test_arguments_of_a_rollout_that_cannot_be_used_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        ls.rollout(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["task_id", "run_id", "split", "group_id", "rollout_id"])
def test_an_id_of_a_rollout_that_comes_from_data_is_made_to_fit(name: str) -> None:
    def stored(value: str) -> str:
        options: dict[str, Any] = {name: value}
        with capture() as cap, ls.rollout(**options):
            pass
        record = of_kind(cap.records, "rollout_start")[0]
        return str(getattr(record if name in ("group_id", "rollout_id") else record.rollout_start, name))

    assert stored(os.fsdecode(b"q-\xff.json")) == "q-\\udcff.json"
    assert stored("é" * 256) == "é" * 256
    long = [stored("x" * 256 + end) for end in ("a", "b", "b")]
    assert long[0] != long[1] == long[2]
    assert [len(kept) for kept in long] == [256, 256, 256]
    assert long[0].startswith("x" * 200)


def test_a_reward_finds_a_rollout_by_the_id_that_it_was_given() -> None:
    for given in ("x" * 300, "\ud800"):
        with capture() as cap:
            with ls.rollout(rollout_id=given) as run:
                pass
            ls.emit_reward(1, rollout_id=given, reward_id=given)
            ls.emit_reward(2, rollout_id=given, reward_id=given)
            ls.emit_reward(1, call=given)
        (episode,) = cap.episodes()
        assert episode.rollout_id == run.rollout_id
        assert episode.return_ == 2


def test_work_that_a_collection_puts_off_at_the_very_last_moment_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes between the last look at what was put off and the moment from which on nothing is put off."""

    class Collected(deque[Callable[[], object]]):
        come = False

        def __len__(self) -> int:
            length = super().__len__()
            if length == 0 and not self.come:
                self.come = True
                ls.annotate(put_off=True)
            return length

        def __bool__(self) -> bool:  # on Python 3.10 a deque does not ask __len__
            return len(self) > 0

    with capture() as cap, ls.rollout():
        late = Collected()
        monkeypatch.setattr(journal._gate, "put_off", late)
        ls.annotate(put_off=False)
        assert late.come
        assert [record.note.values for record in of_kind(cap.records, "note")] == [
            b'{"put_off":false}',
            b'{"put_off":true}',
        ]


async def test_concurrent_rollouts_do_not_mix() -> None:
    @ls.trace_agent
    async def step(number: int) -> None:
        await asyncio.sleep(0)
        make_call(response_id=str(number))

    @ls.trace_agent
    async def solve(number: int) -> str:
        for _ in range(3):
            await step(number)
        current = ls.current_rollout()
        assert current is not None
        return current.rollout_id

    with capture() as cap:
        ids = await asyncio.gather(*(solve(number) for number in range(8)))
    assert len(set(ids)) == 8
    for number, rollout_id in enumerate(ids):
        mine = [sourced for sourced in cap.records if sourced.record.rollout_id == rollout_id]
        calls = of_kind(mine, "call")
        assert [b'"id":"%d"' % number in record.call.response for record in calls] == [True] * 3
        assert of_kind(mine, "leave")[0].leave.count == len(mine)


async def test_concurrent_agents_of_one_rollout_share_it() -> None:
    @ls.trace_agent
    async def part() -> None:
        await asyncio.sleep(0)
        make_call()

    with capture() as cap:
        async with ls.rollout() as run:
            await asyncio.gather(*(part() for _ in range(5)))
    assert {sourced.record.rollout_id for sourced in cap.records} == {run.rollout_id}
    assert len({record.scope_id for record in of_kind(cap.records, "call")}) == 5
    assert bodies(cap.records)[-1] == "leave"


def test_threads_have_rollouts_of_their_own() -> None:
    with capture() as cap:
        threads = [threading.Thread(target=outer) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    starts = of_kind(cap.records, "rollout_start")
    assert len({record.rollout_id for record in starts}) == 6
    for start in starts:
        mine = [sourced for sourced in cap.records if sourced.record.rollout_id == start.rollout_id]
        assert of_kind(mine, "leave")[0].leave.count == len(mine) == 10


async def test_a_cancelled_task_is_a_cancelled_rollout_and_stays_cancelled() -> None:
    @ls.trace_agent
    async def wait() -> None:
        await asyncio.Event().wait()

    with capture() as cap:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert task.cancelled()
    assert [record.scope_end.outcome for record in of_kind(cap.records, "scope_end")] == [CANCELLED]
    assert [record.rollout_end.outcome for record in of_kind(cap.records, "rollout_end")] == [CANCELLED]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_cancelled_and_passes(kind: type[BaseException]) -> None:
    @ls.trace_agent
    def stop() -> None:
        raise kind

    with capture() as cap, pytest.raises(kind):
        stop()
    assert of_kind(cap.records, "rollout_end")[0].rollout_end.outcome == CANCELLED


def test_an_exception_that_leaves_a_rollout_block_fails_it() -> None:
    with capture() as cap, pytest.raises(LookupError), ls.rollout():
        raise LookupError("sk-abcdefghijklmnop1234 is wrong")
    end = of_kind(cap.records, "rollout_end")[0].rollout_end
    assert (end.outcome, end.error.type, end.error.message) == (ERROR, "LookupError", "[redacted] is wrong")


def test_an_error_that_cannot_be_printed_is_recorded_by_its_type() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @ls.trace_agent
    def fails() -> None:
        raise Silent

    with capture() as cap, pytest.raises(Silent):
        fails()
    error = of_kind(cap.records, "scope_end")[0].scope_end.error
    assert error.type.endswith("Silent")
    assert error.message == ""


def test_a_tool_keeps_arguments_as_they_were_given_and_its_result() -> None:
    @ls.trace_tool
    def search(query: dict[str, object], limit: int = 3, *more: int, **options: object) -> list[object]:
        query["seen"] = True
        return [float("nan"), {1, 2}.__class__, query]

    @ls.trace_agent(name="asker")
    def ask() -> None:
        search({"q": "x"}, 5, 6, deep=object)
        search({"q": "y"})

    with capture() as cap:
        ask()
    first, second = of_kind(cap.records, "tool_call")
    assert first.tool_call.name.endswith("search")
    assert first.tool_call.agent == "asker"
    assert first.tool_call.arguments == (
        b"""{"query":{"q":"x"},"limit":5,"args":[6],"deep":"<class 'object'>"}"""
    )
    assert first.tool_call.result == b"""["nan","<class 'set'>",{"q":"x","seen":true}]"""
    assert second.tool_call.arguments == b'{"query":{"q":"y"}}'
    assert first.scope_id == of_kind(cap.records, "scope_start")[0].scope_id


def test_a_tool_that_raises_is_an_error_with_its_arguments() -> None:
    @ls.trace_tool("divide")
    def divide(a: int, b: int) -> float:
        return a / b

    with capture() as cap, ls.rollout(), pytest.raises(ZeroDivisionError):
        divide(1, b=0)
    tool = of_kind(cap.records, "tool_call")[0].tool_call
    assert (tool.name, tool.outcome, tool.error.type) == ("divide", ERROR, "ZeroDivisionError")
    assert (tool.arguments, tool.result) == (b'{"a":1,"b":0}', b"")


def test_a_tool_outside_a_rollout_is_counted_and_runs() -> None:
    @ls.trace_tool
    def double(number: int) -> int:
        return number * 2

    before = faults.counters().get("tool_calls_outside_rollout", 0)
    assert double(4) == 8
    assert faults.counters()["tool_calls_outside_rollout"] == before + 1


def test_a_reward_for_another_rollout_that_is_open_here_is_counted_where_it_belongs() -> None:
    with capture() as cap, ls.rollout():
        make_call()
        handle = ls.last_call()
        with ls.rollout():
            ls.emit_reward(1, call=handle)
    assert all(episode.complete for episode in cap.episodes())
    assert sorted(len(episode.rewards) for episode in cap.episodes()) == [0, 1]
