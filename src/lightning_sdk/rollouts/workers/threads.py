"""Workers that are threads of this process."""

from __future__ import annotations

import queue
import threading
from typing import ClassVar, Final

from lightning_sdk.rollouts.execution import run_job
from lightning_sdk.rollouts.job import Job, Result, cancelled
from lightning_sdk.rollouts.workers.base import Workers

_STOP: Final = None


class ThreadWorkers(Workers):
    """See `Workers`. For agents that wait for models most of the time, and share what is expensive to load.

    A thread cannot be ended from outside: a timeout is refused, and what is cancelled comes back as cancelled at once
    but goes on in its thread, which takes no other job before it is done.
    """

    kind: ClassVar[str] = "threads"
    no_timeout: ClassVar[str | None] = "a thread cannot be ended from outside"

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Whose result has not been given yet, by rollout and attempt.
        self._pending: dict[tuple[str, int], Job] = {}
        self._started = False

    def start(self) -> None:
        """See `Workers.start`."""
        if not self._started:
            self._started = True
            for number in range(self.capacity):
                self._start_thread(f"thread-{number + 1}")

    def submit(self, job: Job) -> None:
        """See `Workers.submit`."""
        with self._lock:
            self._pending[job.rollout_id, job.attempt] = job
        self._jobs.put(job)

    def next_result(self, timeout_s: float | None) -> Result | None:
        """See `Workers.next_result`."""
        try:
            return self._results.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def cancel(self, rollout_id: str, attempt: int) -> None:
        """See `Workers.cancel`."""
        with self._lock:
            job = self._pending.get((rollout_id, attempt))
        if job is not None:
            self._give(
                cancelled(job, self.kind, "it was cancelled, but its thread goes on until the agent returns")
            )

    def close(self) -> None:
        """See `Workers.close`. Threads whose agent still runs are left, and do not hold up the exit."""
        with self._lock:
            self._pending.clear()
        for _ in range(self.capacity):
            self._jobs.put(_STOP)

    def _start_thread(self, name: str) -> None:
        threading.Thread(target=self._work, args=(name,), name=f"lightning-{name}", daemon=True).start()

    def _work(self, name: str) -> None:
        while (job := self._jobs.get()) is not _STOP:
            with self._lock:
                wanted = (job.rollout_id, job.attempt) in self._pending
            if wanted:
                self._give(run_job(job, worker=name))

    def _give(self, result: Result) -> None:
        with self._lock:
            if self._pending.pop((result.rollout_id, result.attempt), None) is None:
                return
        self._results.put(result)
