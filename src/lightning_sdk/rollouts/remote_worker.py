"""What `lsdk work` runs: takes jobs from the collector's broker, and runs each in a process of its own."""

from __future__ import annotations

import dataclasses
import os
import queue
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lightning_sdk._proto.work_pb2 import (
    Draining,
    FromWorker,
    Goodbye,
    Heartbeat,
    Held,
    LeasedJob,
    LeasedResult,
    Released,
    ToWorker,
    WorkerHello,
)
from lightning_sdk.errors import CollectorError, WireError
from lightning_sdk.ids import new_id
from lightning_sdk.rollouts.job import Job, Result
from lightning_sdk.rollouts.workers.processes import ProcessWorkers
from lightning_sdk.rollouts.workers.work_stream import WorkStream

# How many leases are remembered as begun, to say truly of one whether it was.
_MAX_REMEMBERED: Final = 4096


@dataclass(slots=True, eq=False)
class _Held:
    """A lease of ours: it runs, or its result is not settled."""

    lease: str
    runner: str
    rollout_id: str
    attempt: int
    # None while it runs.
    result: bytes | None = None
    # Which slot runs it.
    slot: int = -1


class RemoteWorker:
    """Offers agents to whoever has rollouts for them.

    Each slot is one process of `ProcessWorkers`, so a timeout ends whatever the agent does. What runs goes on while
    the collector is away, and its result is told when it is there again. Thread-safe.
    """

    def __init__(
        self,
        agents: Sequence[str],
        endpoint: str,
        *,
        token: str | None = None,
        slots: int = 1,
        output: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            agents: "module:function", each; jobs of others are refused.
            endpoint: of the collector.
            token: the collector's.
            slots: jobs that run at once.
            output: a directory for what agents print. Default: it is thrown away.
            environment: variables that the processes get beside ours.

        Raises:
            ConfigError: endpoint or token are none.
        """
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._id = new_id("worker")
        self._agents = tuple(dict.fromkeys(agents))
        self._slots = [
            ProcessWorkers(
                1,
                output=None if output is None else output / f"slot-{number}",
                environment=environment,
            )
            for number in range(1, slots + 1)
        ]
        self._jobs: list[queue.SimpleQueue[tuple[_Held, Job] | None]] = [
            queue.SimpleQueue() for _ in range(slots)
        ]
        self._free = list(range(slots))
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._held: dict[str, _Held] = {}
        self._begun: OrderedDict[str, None] = OrderedDict()
        self._draining = False
        self._aborting = False
        # Jobs whose agents have been run to some end.
        self.done = 0
        self._stream = WorkStream(
            endpoint,
            token,
            lambda stub: stub.Take,
            lock=self._lock,
            hello=self._hello,
            beat=self._beat,
            receive=self._receive,
        )

    def start(self) -> None:
        """Begin to offer."""
        for number, workers in enumerate(self._slots):
            workers.start()
            thread = threading.Thread(
                target=self._run_slot, args=(number,), name=f"lightning-slot-{number + 1}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        self._stream.start()

    @property
    def error(self) -> CollectorError | None:
        """Why this worker will never get a job; None where it may."""
        return self._stream.error

    @property
    def problem(self) -> str | None:
        """Why there is no connection now; None where there is one, or none was tried yet."""
        return self._stream.problem

    @property
    def connected(self) -> bool:
        """Whether the broker has answered on the present connection."""
        return self._stream.connected

    @property
    def running(self) -> int:
        """How many jobs run."""
        with self._lock:
            return len(self._slots) - len(self._free)

    def drain(self) -> None:
        """Take no more jobs. Idempotent."""
        with self._lock:
            if not self._draining:
                self._draining = True
                self._stream.send(FromWorker(draining=Draining()))
            self._changed.notify_all()

    def wait_drained(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing runs (after `drain`). False: the time was up first."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._free) == len(self._slots), timeout_s)

    def wait_settled(self, timeout_s: float) -> bool:
        """Wait until all results have been taken. False: the time was up first, and those left are lost."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held, timeout_s)

    def close(self) -> None:
        """End what runs, which is then lost, and say goodbye. Idempotent."""
        with self._lock:
            self._draining = self._aborting = True
            for held in self._held.values():
                if held.result is None:
                    self._slots[held.slot].cancel(held.rollout_id, held.attempt)
        for jobs in self._jobs:
            jobs.put(None)
        for thread in self._threads:
            thread.join()
        for workers in self._slots:
            workers.close()
        self._stream.close(FromWorker(goodbye=Goodbye()))

    # -- the story for the broker; the lock is held --------------------------------------------------------------

    def _hello(self) -> list[FromWorker]:
        held = [
            Held(
                lease=each.lease,
                peer=each.runner,
                rollout_id=each.rollout_id,
                attempt=each.attempt,
                ended=each.result is not None,
            )
            for each in self._held.values()
        ]
        hello = WorkerHello(
            worker=self._id,
            name=self.name,
            agents=self._agents,
            slots=len(self._slots),
            draining=self._draining,
            held=held,
        )
        return [FromWorker(hello=hello), *self._results()]

    def _beat(self) -> list[FromWorker]:
        # Results again, since whoever is to take them may have been away.
        return [FromWorker(heartbeat=Heartbeat()), *self._results()]

    def _results(self) -> list[FromWorker]:
        return [_result_message(each) for each in self._held.values() if each.result is not None]

    # -- what the broker says ------------------------------------------------------------------------------------

    def _receive(self, message: ToWorker) -> None:
        with self._lock:
            kind = message.WhichOneof("message")
            if kind == "job":
                self._take(message.job)
            elif kind == "cancel":
                self._cancel(message.cancel)
            elif kind == "settled":
                held = self._held.get(message.settled)
                if held is not None and held.result is not None:
                    del self._held[message.settled]
                    self._changed.notify_all()

    def _take(self, leased: LeasedJob) -> None:
        if leased.lease in self._held:
            return
        begun = leased.lease in self._begun
        if begun or self._draining or not self._free:
            self._stream.send(FromWorker(released=Released(lease=leased.lease, begun=begun)))
            return
        self._remember(leased.lease)
        held = _Held(leased.lease, leased.runner, leased.rollout_id, leased.attempt)
        self._held[held.lease] = held
        try:
            job = self._checked(leased)
        except WireError as error:
            self._end(held, _refused(held, self.name, error))
            return
        held.slot = self._free.pop(0)
        self._jobs[held.slot].put((held, job))

    def _checked(self, leased: LeasedJob) -> Job:
        job = Job.from_json(leased.job)
        if (job.rollout_id, job.attempt) != (leased.rollout_id, leased.attempt):
            raise WireError("the job is of another rollout than its lease")
        if job.agent not in self._agents:
            raise WireError(f"this worker offers {', '.join(self._agents)}, and not {job.agent}")
        return job

    def _cancel(self, lease: str) -> None:
        held = self._held.get(lease)
        if held is None:
            self._stream.send(FromWorker(released=Released(lease=lease, begun=lease in self._begun)))
        elif held.result is not None:
            self._stream.send(_result_message(held))
        else:
            self._slots[held.slot].cancel(held.rollout_id, held.attempt)

    def _remember(self, lease: str) -> None:
        self._begun[lease] = None
        if len(self._begun) > _MAX_REMEMBERED:
            self._begun.popitem(last=False)

    # -- slots -----------------------------------------------------------------------------------------------------

    def _run_slot(self, number: int) -> None:
        """The thread of one slot."""
        workers = self._slots[number]
        while (given := self._jobs[number].get()) is not None:
            held, job = given
            workers.submit(job)
            with self._lock:
                if self._aborting:
                    workers.cancel(held.rollout_id, held.attempt)
            result = workers.next_result(None)
            assert result is not None
            self._finished(number, held, result)

    def _finished(self, number: int, held: _Held, result: Result) -> None:
        """A slot is free again."""
        with self._lock:
            self.done += 1
            self._free.append(number)
            if self._aborting and result.outcome == "cancelled":
                # Nobody wanted this one to end but we: its runner may try it again.
                del self._held[held.lease]
                self._stream.send(FromWorker(released=Released(lease=held.lease, begun=True)))
            else:
                self._end(held, dataclasses.replace(result, worker=f"{self.name}/{number + 1}"))
            self._changed.notify_all()

    def _end(self, held: _Held, result: Result) -> None:
        held.result = result.to_json()
        self._stream.send(_result_message(held))


def _result_message(held: _Held) -> FromWorker:
    assert held.result is not None
    return FromWorker(
        result=LeasedResult(
            lease=held.lease, rollout_id=held.rollout_id, attempt=held.attempt, result=held.result
        )
    )


def _refused(held: _Held, worker: str, error: WireError) -> Result:
    now_ns = time.time_ns()
    return Result(
        rollout_id=held.rollout_id,
        attempt=held.attempt,
        outcome="failed",
        error_type=f"{WireError.__module__}.{WireError.__qualname__}",
        error_message=str(error),
        start_ns=now_ns,
        end_ns=now_ns,
        worker=worker,
    )
