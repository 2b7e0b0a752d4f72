"""Workers that are programs of their own, `lsdk work`, on any machine that reaches the collector."""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_sdk._proto.work_pb2 import (
    Capacity,
    FromRunner,
    Goodbye,
    Heartbeat,
    Held,
    LeasedJob,
    LeasedResult,
    Lost,
    RunnerHello,
    Slot,
    ToRunner,
    Wanted,
)
from lightning_sdk.collector.work_peers import MAX_JOB_BYTES
from lightning_sdk.errors import CollectorError, ConfigError, WireError
from lightning_sdk.ids import new_id
from lightning_sdk.rollouts.job import Job, Result, cancelled, ended_outside
from lightning_sdk.rollouts.workers.base import Workers
from lightning_sdk.rollouts.workers.work_stream import WorkStream

# How long the collector has to answer at the beginning.
_START_TIMEOUT_S: Final = 15.0

_Key = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Open:
    """A job without a result."""

    job: Job
    # "": it waits for a worker, and runs nowhere.
    lease: str = ""
    worker: str = ""
    worker_name: str = ""
    unwanted: bool = False


class RemoteWorkers(Workers):
    """See `Workers`. Rollouts run on whatever workers have told the collector that they offer their agents.

    This process keeps what was submitted; the collector only brings jobs to workers and results back, and may be
    restarted meanwhile. `capacity` follows the workers that are there.
    """

    kind: ClassVar[str] = "remote"
    no_timeout: ClassVar[str | None] = None

    def __init__(self, endpoint: str | None, token: str | None = None) -> None:
        """Prepare; nothing is connected.

        Args:
            endpoint: of the collector.
            token: the collector's.

        Raises:
            ConfigError: there is no endpoint, or it or the token is none.
        """
        if not endpoint:
            raise ConfigError(
                "the kind remote needs a collector, where its workers ask for jobs: start `lsdk collect`, and give "
                "--endpoint grpc://host:port"
            )
        self.capacity = 0
        # Results of leases that were given up before, and were not taken.
        self.late = 0
        self._id = new_id("runner")
        self._lock = threading.RLock()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._open: dict[_Key, _Open] = {}
        # Jobs without a lease by agent, the oldest first; jobs with one by lease.
        self._waiting: dict[str, deque[_Open]] = {}
        self._leased: dict[str, _Open] = {}
        self._slots: Mapping[str, int] = {}
        # How many waiting jobs the broker knows of, by agent.
        self._asked: Counter[str] = Counter()
        self._closed = False
        self._stream = WorkStream(
            endpoint,
            token,
            lambda stub: stub.Offer,
            lock=self._lock,
            hello=self._hello,
            beat=self._beat,
            receive=self._receive,
        )
        self._started = False

    def start(self) -> None:
        """See `Workers.start`."""
        if self._started:
            return
        self._started = True
        self._stream.start()
        answered = self._stream.wait_welcome(_START_TIMEOUT_S)
        if not answered or self._stream.error is not None:
            self.close()
            raise self._stream.error or CollectorError(
                f"the collector at {self._stream.endpoint} cannot be reached ({self._stream.problem}): start it with "
                "`lsdk collect`, or check the address"
            )

    def takes(self, agent: str) -> bool:
        """See `Workers.takes`."""
        with self._lock:
            open_jobs = sum(each.job.agent == agent for each in self._open.values())
            return open_jobs < self._slots.get(agent, 0)

    def waits_for(self, agents: Collection[str]) -> str | None:
        """See `Workers.waits_for`."""
        with self._lock:
            waiting = {agent for agent, jobs in self._waiting.items() if jobs}
            missing = sorted(agent for agent in waiting | set(agents) if not self._slots.get(agent))
        if not self._stream.connected:
            return f"waiting for the collector at {self._stream.endpoint}"
        if not missing:
            return None
        offers = " ".join(f"--agent {agent}" for agent in missing)
        return f"waiting for workers: lsdk work {offers} --endpoint {self._stream.endpoint}"

    def submit(self, job: Job) -> None:
        """See `Workers.submit`."""
        with self._lock:
            each = _Open(job)
            self._open[job.rollout_id, job.attempt] = each
            self._wait(each)

    def next_result(self, timeout_s: float | None) -> Result | None:
        """See `Workers.next_result`."""
        if self._stream.error is not None and self._results.empty():
            raise self._stream.error
        try:
            return self._results.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def cancel(self, rollout_id: str, attempt: int) -> None:
        """See `Workers.cancel`."""
        with self._lock:
            each = self._open.get((rollout_id, attempt))
            if each is None:
                return
            if each.lease:
                each.unwanted = True
                self._stream.send(FromRunner(cancel=each.lease))
                return
            self._waiting[each.job.agent].remove(each)
            self._ask(each.job.agent)
            self._finish(each, cancelled(each.job, self.kind, "it was cancelled before it began"))

    def close(self) -> None:
        """See `Workers.close`. What still runs is ended by the collector's word."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stream.close(FromRunner(goodbye=Goodbye()))

    # -- the story for the broker; the lock is held --------------------------------------------------------------

    def _hello(self) -> list[FromRunner]:
        held = [
            Held(
                lease=lease,
                peer=each.worker,
                rollout_id=each.job.rollout_id,
                attempt=each.job.attempt,
            )
            for lease, each in self._leased.items()
        ]
        messages = [FromRunner(hello=RunnerHello(runner=self._id, held=held))]
        self._asked = Counter({agent: len(jobs) for agent, jobs in self._waiting.items() if jobs})
        messages += [FromRunner(wanted=Wanted(agent=agent, more=more)) for agent, more in self._asked.items()]
        messages += [FromRunner(cancel=lease) for lease, each in self._leased.items() if each.unwanted]
        return messages

    def _beat(self) -> list[FromRunner]:
        return [FromRunner(heartbeat=Heartbeat())]

    def _wait(self, each: _Open, *, first: bool = False) -> None:
        jobs = self._waiting.setdefault(each.job.agent, deque())
        if first:
            jobs.appendleft(each)
        else:
            jobs.append(each)
        self._ask(each.job.agent)

    def _ask(self, agent: str) -> None:
        more = len(self._waiting.get(agent, ())) - self._asked[agent]
        if more:
            self._asked[agent] += more
            self._stream.send(FromRunner(wanted=Wanted(agent=agent, more=more)))

    def _finish(self, each: _Open, result: Result) -> None:
        self._leased.pop(each.lease, None)
        del self._open[each.job.rollout_id, each.job.attempt]
        self._results.put(result)

    # -- what the broker says ------------------------------------------------------------------------------------

    def _receive(self, message: ToRunner) -> None:
        with self._lock:
            kind = message.WhichOneof("message")
            if kind == "capacity":
                self._set_capacity(message.capacity)
            elif kind == "slot":
                self._fill(message.slot)
            elif kind == "result":
                self._take(message.result)
            elif kind == "lost":
                self._lose(message.lost)
            elif kind == "returned":
                each = self._leased.pop(message.returned, None)
                if each is not None:
                    self._put_back(each)

    def _set_capacity(self, capacity: Capacity) -> None:
        slots: Counter[str] = Counter()
        for pool in capacity.pools:
            slots.update(dict.fromkeys(pool.agents, pool.slots))
        self._slots = slots
        self.capacity = sum(pool.slots for pool in capacity.pools)

    def _fill(self, slot: Slot) -> None:
        self._asked[slot.agent] -= 1
        jobs = self._waiting.get(slot.agent)
        while jobs:
            each = jobs.popleft()
            data = each.job.to_json()
            if len(data) <= MAX_JOB_BYTES:
                each.lease, each.worker, each.worker_name = slot.lease, slot.worker, slot.worker_name
                self._leased[slot.lease] = each
                self._stream.send(FromRunner(job=_leased(slot, each.job, data)))
                break
            self._finish(each, _too_large(each.job, len(data)))
        else:
            self._stream.send(FromRunner(decline=slot.lease))
        self._ask(slot.agent)

    def _take(self, leased: LeasedResult) -> None:
        each = self._leased.get(leased.lease)
        if each is None or (each.job.rollout_id, each.job.attempt) != (leased.rollout_id, leased.attempt):
            self.late += 1
        else:
            self._finish(each, _result(each, leased.result))
        self._stream.send(FromRunner(settled=leased.lease))

    def _lose(self, lost: Lost) -> None:
        each = self._leased.get(lost.lease)
        if each is not None:
            worker = each.worker_name or self.kind
            self._finish(each, ended_outside(each.job, "lost", "WorkerLost", lost.reason, worker=worker))

    def _put_back(self, each: _Open) -> None:
        each.lease = each.worker = each.worker_name = ""
        if each.unwanted:
            self._finish(each, cancelled(each.job, self.kind, "it was cancelled before it began"))
        else:
            self._wait(each, first=True)


def _leased(slot: Slot, job: Job, data: bytes) -> LeasedJob:
    return LeasedJob(
        lease=slot.lease, agent=job.agent, rollout_id=job.rollout_id, attempt=job.attempt, job=data
    )


def _result(each: _Open, data: bytes) -> Result:
    """What a worker says, unless it cannot be."""
    job = each.job
    try:
        result = Result.from_json(data)
        if (result.rollout_id, result.attempt) == (job.rollout_id, job.attempt):
            return result
        message = "its worker answered with the result of another rollout"
    except WireError as error:
        message = f"its worker's answer is no result: {error}"
    return ended_outside(job, "lost", "WorkerLost", message, worker=each.worker_name)


def _too_large(job: Job, size_bytes: int) -> Result:
    message = (
        f"the job is {size_bytes:,} bytes as JSON, more than the {MAX_JOB_BYTES:,} that go to a remote worker: "
        "put large things into files or a store, and their names into the task"
    )
    kind = f"{ConfigError.__module__}.{ConfigError.__qualname__}"
    return ended_outside(job, "failed", kind, message, worker=RemoteWorkers.kind)
