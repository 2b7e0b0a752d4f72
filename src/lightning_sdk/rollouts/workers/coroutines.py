"""Workers that are coroutines, in one event loop of this process."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import ClassVar

from lightning_sdk.rollouts.execution import run_job_async
from lightning_sdk.rollouts.job import Job, Result, cancelled
from lightning_sdk.rollouts.workers.base import Workers


class AsyncWorkers(Workers):
    """See `Workers`. For asynchronous agents that mostly wait: thousands at once cost little.

    Agents must be coroutine functions. A timeout and a cancellation cancel the coroutine. One that does not let
    itself be cancelled, or that computes without awaiting, cannot be ended; its result says so after a while.
    """

    kind: ClassVar[str] = "async"
    no_timeout: ClassVar[str | None] = None

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Of the loop's thread only.
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def start(self) -> None:
        """See `Workers.start`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="lightning-async", daemon=True
            )
            self._thread.start()

    def submit(self, job: Job) -> None:
        """See `Workers.submit`."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin, job)

    def next_result(self, timeout_s: float | None) -> Result | None:
        """See `Workers.next_result`."""
        try:
            return self._results.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def cancel(self, rollout_id: str, attempt: int) -> None:
        """See `Workers.cancel`."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, (rollout_id, attempt))

    def close(self) -> None:
        """See `Workers.close`. What does not let itself be cancelled is left; it does not hold up the exit."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        left = asyncio.run_coroutine_threadsafe(self._end_all(), loop).result()
        if left == 0:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def _begin(self, job: Job) -> None:
        key = (job.rollout_id, job.attempt)
        self._tasks[key] = asyncio.ensure_future(self._run(job))
        self._tasks[key].add_done_callback(lambda task: self._end(job, task))

    async def _run(self, job: Job) -> None:
        self._results.put(await run_job_async(job, worker=self.kind))

    def _end(self, job: Job, task: asyncio.Task[None]) -> None:
        self._tasks.pop((job.rollout_id, job.attempt), None)
        if task.cancelled():  # before it had run at all
            self._results.put(cancelled(job, self.kind, "it was cancelled before it began"))

    def _cancel(self, key: tuple[str, int]) -> None:
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    async def _end_all(self) -> int:
        """Cancel what runs; returns how many coroutines go on all the same."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.get_running_loop().shutdown_default_executor()
        return len(asyncio.all_tasks()) - 1
