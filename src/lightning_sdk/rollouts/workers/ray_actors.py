"""Workers that are Ray actors, on whatever machines the cluster has."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from lightning_sdk.errors import ConfigError, RunError
from lightning_sdk.rollouts.job import Job, Result, cancelled, ended_outside
from lightning_sdk.rollouts.workers.base import Workers
from lightning_sdk.rollouts.workers.process import NOT_FOR_AGENTS

# What an actor's process gets of our environment: where records go, and how.
_CARRIED: Final = "LIGHTNING_"
_LOOK_EVERY_S: Final = 0.05


class _Actor:
    """Runs in a process of Ray's: keeps one worker process of ours there, which can be killed whatever it does."""

    def __init__(self, directory: str, environment: Mapping[str, str]) -> None:
        import contextlib

        from lightning_sdk.rollouts.workers.processes import ProcessWorkers

        with contextlib.suppress(OSError):  # another machine: there the runtime environment says where we are
            os.chdir(directory)
        self._workers = ProcessWorkers(1, environment=environment)
        self._workers.start()

    def run(self, job: bytes) -> bytes:
        """Run one job, as JSON; its result, as JSON."""
        self._workers.submit(Job.from_json(job))
        result = self._workers.next_result(None)
        assert result is not None
        return result.to_json()

    def cancel(self, rollout_id: str, attempt: int) -> None:
        """See `Workers.cancel`."""
        self._workers.cancel(rollout_id, attempt)

    def close(self) -> None:
        """See `Workers.close`."""
        self._workers.close()


class RayWorkers(Workers):
    """See `Workers`. Each rollout runs in a process that an actor keeps, so that a timeout ends it like any other.

    A node that dies loses its rollouts: they come back as lost, and another actor takes its place. The agent must be
    importable on every node, and records must find a collector: without an endpoint they stay in the node's spool.
    """

    kind: ClassVar[str] = "ray"
    no_timeout: ClassVar[str | None] = None

    def __init__(self, capacity: int, *, address: str | None = None) -> None:
        """Prepare; nothing is started.

        Args:
            capacity: actors.
            address: of the cluster; "auto": the one of this machine; None: `RAY_ADDRESS`, or one that ends with us.

        Raises:
            ConfigError: ray is not installed.
        """
        try:
            import ray
        except ImportError:
            raise ConfigError('the kind ray needs Ray: pip install "agent-lightning-sdk[ray]"') from None
        self.capacity = capacity
        self._ray: Any = ray
        self._address = address
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._free: list[Any] = []
        self._actors: list[Any] = []
        # By attempt: the job, its actor, and the reference to its answer.
        self._running: dict[tuple[str, int], tuple[Job, Any, Any]] = {}
        self._owns_cluster = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """See `Workers.start`."""
        if self._thread is not None:
            return
        if not self._ray.is_initialized():
            try:
                self._ray.init(address=self._address, log_to_driver=False, configure_logging=False)
            except Exception as error:
                raise RunError(f"no Ray cluster at {self._address or 'this machine'}: {error}") from None
            self._owns_cluster = True
        self._thread = threading.Thread(target=self._collect, name="lightning-ray", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """See `Workers.submit`."""
        with self._changed:
            actor = self._free.pop() if self._free else self._start_actor()
            answer = actor.run.remote(job.to_json())
            self._running[job.rollout_id, job.attempt] = (job, actor, answer)
            self._changed.notify_all()

    def next_result(self, timeout_s: float | None) -> Result | None:
        """See `Workers.next_result`."""
        try:
            return self._results.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def cancel(self, rollout_id: str, attempt: int) -> None:
        """See `Workers.cancel`."""
        with self._changed:
            running = self._running.get((rollout_id, attempt))
        if running is not None:
            running[1].cancel.remote(rollout_id, attempt)

    def close(self) -> None:
        """See `Workers.close`."""
        with self._changed:
            if self._closing or self._thread is None:
                return
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            endings = [actor.close.remote() for actor in self._actors]
        if endings:
            self._ray.wait(endings, num_returns=len(endings), timeout=15.0)
        for actor in self._actors:
            self._ray.kill(actor)
        if self._owns_cluster:
            self._ray.shutdown()

    def _start_actor(self) -> Any:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_CARRIED) and name not in NOT_FOR_AGENTS
        }
        # Two calls at once, so that a cancellation reaches an actor that runs something.
        remote = self._ray.remote(max_concurrency=2, scheduling_strategy="SPREAD")(_Actor)
        actor = remote.remote(str(Path.cwd()), environment)
        self._actors.append(actor)
        return actor

    def _collect(self) -> None:
        """The thread that waits for answers."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._running or self._closing)
                if self._closing:
                    return
                keys = {answer: key for key, (_, _, answer) in self._running.items()}
            ready, _ = self._ray.wait(list(keys), timeout=_LOOK_EVERY_S)
            for answer in ready:
                self._take(keys[answer], answer)

    def _take(self, key: tuple[str, int], answer: Any) -> None:
        with self._changed:
            job, actor, _ = self._running.pop(key)
            try:
                result = Result.from_json(self._ray.get(answer))
            except self._ray.exceptions.TaskCancelledError:
                result = cancelled(job, self.kind, "it was cancelled by Ray")
            except Exception as error:  # whatever Ray says of an actor that is no more
                self._actors.remove(actor)
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
                message = f"its Ray actor died: {reason}"
                result = ended_outside(job, "lost", "WorkerLost", message, worker=self.kind)
            else:
                self._free.append(actor)
        self._results.put(result)
