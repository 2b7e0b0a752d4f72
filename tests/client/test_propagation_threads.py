"""A rollout reaches the threads that work for it.

1. A thread, and each task of a pool, works in the scope that it was started or submitted in.
2. Workers of pools start empty: one that outlives a rollout claims nothing of the next.
3. The patches harm nobody, and are off where they were turned off.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.dummy import Pool as ThreadPool
from multiprocessing.pool import Pool
from multiprocessing.process import BaseProcess

import pytest

import lightning_sdk as ls
from lightning_sdk.client.propagation.patches import PATCHES
from lightning_sdk.errors import ConfigError
from lightning_sdk.testing import capture
from support.client_records import make_call


def rollout_id(*_: object) -> str | None:
    here = ls.current_rollout()
    return here.rollout_id if here else None


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def in_thread(function: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_call_in_a_thread_is_the_agents_that_started_it() -> None:
    with capture() as cap:

        @ls.trace_agent("solve")
        def solve() -> None:
            in_thread(make_call)

        solve()
    (episode,) = cap.episodes()
    assert episode.complete
    assert [call.agent for call in cap.calls] == ["solve"]


def test_a_task_of_a_pool_works_where_it_was_submitted_and_its_worker_keeps_nothing(
    pool: ThreadPoolExecutor,
) -> None:
    with capture():
        with ls.rollout(rollout_id="a"):
            assert pool.submit(rollout_id).result() == "a"
            assert list(pool.map(rollout_id, range(3))) == ["a"] * 3
        assert list(pool.map(rollout_id, range(3))) == [None] * 3
        with ls.rollout(rollout_id="b"):
            assert pool.submit(rollout_id).result() == "b"


def test_rollouts_that_share_a_pool_do_not_mix(pool: ThreadPoolExecutor) -> None:
    meet = threading.Barrier(2)

    def task() -> str | None:
        meet.wait(20)
        return rollout_id()

    with capture():
        submitted = []
        for name in ("a", "b"):
            with ls.rollout(rollout_id=name):
                submitted.append(pool.submit(task))
        assert [future.result() for future in submitted] == ["a", "b"]


def test_asyncio_needs_nothing_more(pool: ThreadPoolExecutor) -> None:
    async def ask() -> list[str | None]:
        loop = asyncio.get_running_loop()
        return [
            await asyncio.to_thread(rollout_id),
            await loop.run_in_executor(None, rollout_id),
            await loop.run_in_executor(pool, rollout_id),
            await asyncio.create_task(_ask()),
        ]

    async def _ask() -> str | None:
        return rollout_id()

    with capture(), ls.rollout(rollout_id="a"):
        assert asyncio.run(ask()) == ["a"] * 4


def test_a_pool_of_multiprocessing_with_threads() -> None:
    with capture(), ThreadPool(1) as pool:
        with ls.rollout(rollout_id="a"):
            assert pool.apply(rollout_id) == "a"
            assert pool.map(rollout_id, [1]) == ["a"]
            assert pool.starmap(rollout_id, [(1, 2)]) == ["a"]
            assert list(pool.imap(func=rollout_id, iterable=[1])) == ["a"]
            assert list(pool.imap_unordered(rollout_id, [1])) == ["a"]
        assert pool.apply(rollout_id) is None


def test_a_pool_that_is_made_in_a_rollout_has_workers_without_one() -> None:
    with capture():
        with ls.rollout():
            threads = ThreadPool(1)
            executor = ThreadPoolExecutor(1)
            executor.submit(int).result()
        with threads, executor:
            assert threads.apply(rollout_id) is None
            assert executor.submit(rollout_id).result() is None


def test_a_timer_and_a_thread_of_a_class_of_its_own() -> None:
    found: queue.Queue[str | None] = queue.Queue()

    class Worker(threading.Thread):
        def run(self) -> None:
            found.put(rollout_id())

    with capture(), ls.rollout(rollout_id="a"):
        worker = Worker()
        worker.start()
        worker.join()
        timer = threading.Timer(0, lambda: found.put(rollout_id()))
        timer.start()
        timer.join()
    assert [found.get(), found.get()] == ["a", "a"]
    assert "run" not in vars(worker)


def test_a_thread_that_was_started_before_has_no_part_in_it() -> None:
    tasks: queue.Queue[Callable[[], object] | None] = queue.Queue()
    found = []

    def serve() -> None:
        while (task := tasks.get()) is not None:
            found.append(task())

    with capture():
        thread = threading.Thread(target=serve)
        thread.start()
        with ls.rollout():
            tasks.put(rollout_id)
            tasks.put(None)
            thread.join()
    assert found == [None]


def test_results_exceptions_and_signatures_are_those_without_us(pool: ThreadPoolExecutor) -> None:
    signatures = {
        patch: inspect.signature(getattr(owner, patch.method))
        for patch in PATCHES
        if (owner := _owner(patch.owner)) is not None
    }
    with capture(), ls.rollout():
        for patch, signature in signatures.items():
            assert inspect.signature(getattr(_owner(patch.owner), patch.method)) == signature
        assert pool.submit(dict, {"a": 1}, fn=2).result() == {"a": 1, "fn": 2}
        error = KeyError("a key")

        def fail() -> None:
            raise error

        assert pool.submit(fail).exception() is error
        with pytest.raises(TypeError, match="fn"):
            pool.submit()  # type: ignore[call-arg]
        thread = threading.Thread(target=int)
        thread.start()
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
        thread.join()
        assert "run" not in vars(thread)


def _owner(name: str) -> type | None:
    owners: list[type] = [threading.Thread, ThreadPoolExecutor, BaseProcess, Pool, subprocess.Popen]
    return next((owner for owner in owners if owner.__name__ == name), None)


def test_shutdown_takes_the_patches_off_and_leaves_those_of_others() -> None:
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit
    ls.init()
    assert threading.Thread.start is not start
    ours = ThreadPoolExecutor.submit
    theirs = lambda self, *args, **kwargs: ours(self, *args, **kwargs)  # noqa: E731
    ThreadPoolExecutor.submit = theirs  # type: ignore[assignment, method-assign]
    try:
        ls.shutdown()
        assert threading.Thread.start is start
        assert ThreadPoolExecutor.submit is theirs
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(int, "3").result() == 3
        ls.init()
        assert ThreadPoolExecutor.submit is theirs
        with ls.rollout(rollout_id="a"), ThreadPoolExecutor(1) as pool:
            assert pool.submit(rollout_id).result() == "a"
    finally:
        ThreadPoolExecutor.submit = ours  # type: ignore[method-assign]
        ls.shutdown()
    assert ThreadPoolExecutor.submit is submit


@pytest.mark.parametrize("how", ["init", "variable"])
def test_it_can_be_turned_off(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.Thread.start
    if how == "variable":
        monkeypatch.setenv("LIGHTNING_PROPAGATE", "0")
    ls.init(propagate=False if how == "init" else None)
    assert threading.Thread.start is before
    with ls.rollout():
        assert in_thread(rollout_id) is None


def test_nothing_is_patched_before_something_is_recorded() -> None:
    before = threading.Thread.start
    with pytest.raises(ConfigError, match="neither yes nor no"):
        ls.init(propagate="yes")  # type: ignore[arg-type]
    assert threading.Thread.start is before
    with ls.rollout():
        assert threading.Thread.start is not before
