"""Workers that are processes of this machine: the default kind."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from lightning_sdk.rollouts.job import Job, Result, cancelled, ended_outside
from lightning_sdk.rollouts.workers.base import Workers
from lightning_sdk.rollouts.workers.process import WorkerProcess

# How long processes have to flush and end by themselves at the end, all together.
_CLOSE_TIMEOUT_S: Final = 5.0


class ProcessWorkers(Workers):
    """See `Workers`. For any agent: each process runs one rollout at a time, and is used again for the next.

    A process that must be ended, or that ends by itself, is killed with its process group and replaced. Processes are
    spawned, not forked: the agent sees a fresh interpreter whose main thread is its own.
    """

    kind: ClassVar[str] = "processes"
    no_timeout: ClassVar[str | None] = None

    def __init__(
        self,
        capacity: int,
        *,
        output: Path | None = None,
        environment: Mapping[str, str] | None = None,
        jobs_per_process: int | None = None,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            capacity: processes.
            output: a directory for what agents print, a file a process. Default: it is thrown away.
            environment: variables that the processes get beside ours.
            jobs_per_process: a process is replaced after so many rollouts. Default: never.
        """
        self.capacity = capacity
        self._output = output
        self._environment = dict(environment or {})
        self._jobs_per_process = jobs_per_process
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Attempts without a result, and those of them that somebody wants to end.
        self._pending: dict[tuple[str, int], Job] = {}
        self._unwanted: set[tuple[str, int]] = set()
        self._closing = False
        self._threads: list[threading.Thread] = []
        # Written to, to make the thread look up: one pipe a thread.
        self._wakes: list[int] = []

    def start(self) -> None:
        """See `Workers.start`."""
        if self._threads:
            return
        if self._output is not None:
            self._output.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(1, self.capacity + 1):
            look, wake = os.pipe()
            os.set_blocking(wake, False)
            self._wakes.append(wake)
            keeper = threading.Thread(
                target=self._keep,
                args=(f"process-{number}", look),
                name=f"lightning-process-{number}",
                daemon=True,
            )
            self._threads.append(keeper)
            keeper.start()

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
            if (rollout_id, attempt) in self._pending:
                self._unwanted.add((rollout_id, attempt))
        self._wake_all()

    def close(self) -> None:
        """See `Workers.close`."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._unwanted.update(self._pending)
        for _ in self._threads:
            self._jobs.put(None)
        self._wake_all()
        for thread in self._threads:
            thread.join()
        for fd in self._wakes:
            os.close(fd)

    def _wake_all(self) -> None:
        for fd in self._wakes:
            # Full: it will look up anyway. Broken: its thread has ended.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(fd, b".")

    def _is_wanted(self, job: Job) -> bool:
        with self._lock:
            return (job.rollout_id, job.attempt) not in self._unwanted

    def _keep(self, name: str, look_fd: int) -> None:
        """The thread of one process: keeps one alive, and gives it jobs."""
        process: WorkerProcess | None = None
        try:
            while (job := self._jobs.get()) is not None:
                if not self._is_wanted(job):
                    self._give(cancelled(job, name, "it was cancelled before it began"))
                    continue
                try:
                    if process is None or not process.alive:
                        process = self._start_process(name, look_fd)
                except OSError as error:
                    message = f"no process could be started: {error}"
                    self._give(ended_outside(job, "lost", "OSError", message, worker=name))
                    continue
                self._give(process.run(job, partial(self._is_wanted, job)))
                if process.spent or process.jobs == self._jobs_per_process:
                    self._end(process)
        finally:
            if process is not None:
                self._end(process)
            os.close(look_fd)

    def _start_process(self, name: str, look_fd: int) -> WorkerProcess:
        output = None if self._output is None else self._output / f"{name}.log"
        return WorkerProcess(name, output, self._environment, look_fd)

    @staticmethod
    def _end(process: WorkerProcess) -> None:
        if process.alive:
            process.ask_to_end()
            process.wait_end(_CLOSE_TIMEOUT_S)

    def _give(self, result: Result) -> None:
        key = (result.rollout_id, result.attempt)
        with self._lock:
            self._unwanted.discard(key)
            if self._pending.pop(key, None) is None:
                return
        self._results.put(result)
