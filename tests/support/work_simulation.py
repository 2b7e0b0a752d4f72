"""The broker with real runners' and workers' sides, on a network and a clock of the test's own: faults by chance."""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

from lightning_sdk.collector.broker import Broker
from lightning_sdk.collector.work_peers import Timing
from lightning_sdk.rollouts.job import Job, Outcome, Result
from lightning_sdk.rollouts.remote_worker import RemoteWorker
from lightning_sdk.rollouts.tasks import Task
from lightning_sdk.rollouts.workers.remote import RemoteWorkers

EXPIRY_S = 10.0
NOWHERE = "grpc://127.0.0.1:1"


class Wire:
    """One connection: what is on its way in both directions."""

    def __init__(self) -> None:
        self.up: deque[Any] = deque()
        self.down: deque[Any] = deque()
        self.broken = False

    def put(self, message: Any) -> None:
        if not self.broken:
            # As it would arrive: a copy of what it is now.
            self.down.append(type(message).FromString(message.SerializeToString()))

    def close(self, reason: str) -> None:
        self.broken = True


class Line:
    """Takes the place of a `WorkStream`: the test says when it connects and breaks."""

    def __init__(self, side: Any) -> None:
        self.side = side
        self.wire: Wire | None = None
        self.peer: Any = None
        self.error = None
        self.connected = True
        side._stream = self

    def send(self, message: Any) -> None:
        if self.wire is not None and not self.wire.broken:
            self.wire.up.append(type(message).FromString(message.SerializeToString()))

    def connect(self) -> None:
        messages = self.side._hello()
        self.wire, self.peer = Wire(), None
        for message in messages:
            self.send(message)

    def beat(self) -> None:
        for message in self.side._beat():
            self.send(message)


class Simulation:
    """Runners with jobs, workers with slots, one broker; `step` does something by chance."""

    def __init__(self, seed: int, *, runners: int = 2, jobs: int = 6) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.broker = self._new_broker()
        self.lines: list[Line] = []
        self.runners = [self._add(RemoteWorkers(NOWHERE)) for _ in range(runners)]
        self.workers: list[Line] = []
        self.begun: Counter[tuple[str, int]] = Counter()
        self.results: dict[tuple[str, int], list[Result]] = {}
        # What agents told before their workers were killed or given up.
        self.ended: dict[tuple[str, int], Outcome] = {}
        self.succeeded: set[str] = set()
        self.rollouts: set[str] = set()
        for number, line in enumerate(self.runners):
            for index in range(jobs):
                rollout_id = f"ro_{number}_{index}"
                self.rollouts.add(rollout_id)
                self.submit(line, rollout_id, 1, "m:a" if index % 3 else "m:b")
        self.start_worker()
        self.start_worker()

    def submit(self, line: Line, rollout_id: str, attempt: int, agent: str) -> None:
        job = Job(
            rollout_id=rollout_id,
            attempt=attempt,
            group_id="g",
            run_id="r",
            project="p",
            task=Task(task_id="t", input=None),
            agent=agent,
        )
        line.side.submit(job)

    def start_worker(self) -> None:
        agents = self.random.choice([["m:a", "m:b"], ["m:a"], ["m:b"]])
        self.workers.append(self._add(RemoteWorker(agents, NOWHERE, slots=self.random.randint(1, 2))))

    def kill_worker(self) -> None:
        if self.workers:
            line = self.workers.pop(self.random.randrange(len(self.workers)))
            self.disconnect(line)
            self.lines.remove(line)

    def restart_broker(self) -> None:
        self.broker = self._new_broker()
        for line in self.lines:
            line.wire = line.peer = None

    def disconnect(self, line: Line) -> None:
        if line.wire is not None and line.peer is not None:
            runner = isinstance(line.side, RemoteWorkers)
            (self.broker.runner_left if runner else self.broker.worker_left)(line.peer, line.wire)
        line.wire = line.peer = None

    def deliver_up(self, line: Line) -> None:
        if line.wire is None or not line.wire.up:
            return
        if line.wire.broken:
            self.disconnect(line)
            return
        message, runner = line.wire.up.popleft(), isinstance(line.side, RemoteWorkers)
        if line.peer is not None:
            (self.broker.runner_says if runner else self.broker.worker_says)(line.peer, message)
        elif runner:
            line.peer = self.broker.runner_joins(message.hello, line.wire)
        else:
            line.peer = self.broker.worker_joins(message.hello, line.wire)

    def deliver_down(self, line: Line) -> None:
        if line.wire is None:
            return
        if line.wire.broken:
            self.disconnect(line)
        elif line.wire.down:
            message = line.wire.down.popleft()
            if message.WhichOneof("message") not in ("welcome", "heartbeat"):
                line.side._receive(message)

    def run_slot(self, line: Line) -> None:
        """A job of a worker that has just begun ends, well or badly."""
        for number, jobs in enumerate(line.side._jobs):
            if not jobs.empty():
                held, job = jobs.get()
                self.begun[job.rollout_id, job.attempt] += 1
                outcome: Outcome = "succeeded" if self.random.random() < 0.8 else "failed"
                self.ended[job.rollout_id, job.attempt] = outcome
                line.side._finished(
                    number,
                    held,
                    Result(
                        rollout_id=job.rollout_id, attempt=job.attempt, outcome=outcome, start_ns=1, end_ns=2
                    ),
                )
                return

    def take_results(self) -> None:
        for line in self.runners:
            while (result := line.side.next_result(0)) is not None:
                key = (result.rollout_id, result.attempt)
                self.results.setdefault(key, []).append(result)
                if result.outcome == "lost":
                    agent = "m:a" if int(result.rollout_id.rpartition("_")[2]) % 3 else "m:b"
                    self.submit(line, result.rollout_id, result.attempt + 1, agent)
                else:
                    self.succeeded.add(result.rollout_id)

    def step(self, *, faults: bool) -> None:
        choice, line = self.random.random(), self.random.choice(self.lines)
        if faults and choice < 0.002:
            self.restart_broker()
        elif faults and choice < 0.01:
            self.disconnect(line)
        elif faults and choice < 0.014:
            self.kill_worker()
            self.start_worker()
        elif faults and choice < 0.018 and self.workers:
            self.random.choice(self.workers).side.drain()
            self.start_worker()
        elif choice < 0.06:
            self.now_s += self.random.uniform(0.1, 4.0)
            self.broker.expire()
        elif choice < 0.2:
            if line.wire is None:
                line.connect()
            else:
                line.beat()
        elif choice < 0.3:
            if self.workers:
                self.run_slot(self.random.choice(self.workers))
        elif choice < 0.65:
            self.deliver_up(line)
        else:
            self.deliver_down(line)
        self.take_results()

    def settle(self) -> None:
        """No more faults, until all rollouts have ended and nothing is left on the way."""
        self.start_worker()
        self.workers[-1].side._agents = ("m:a", "m:b")
        for _ in range(4000):
            if self.succeeded == self.rollouts and not self._left():
                return
            for line in self.lines:
                if line.wire is None:
                    line.connect()
                line.beat()
                while line.wire is not None and line.wire.up:
                    self.deliver_up(line)
            for line in self.workers:
                self.run_slot(line)
            for line in self.lines:
                while line.wire is not None and (line.wire.down or line.wire.broken):
                    self.deliver_down(line)
            self.take_results()
            self.now_s += EXPIRY_S / 4
            self.broker.expire()
        raise AssertionError(f"left over: {self.rollouts - self.succeeded}, {self._left()}")

    def _left(self) -> list[object]:
        """Leases that anybody still holds or knows of."""
        known = [lease for worker in self.broker._workers.values() for lease in worker.leases]
        held = [lease for line in self.workers for lease in line.side._held]
        return [*known, *held, *(lease for line in self.runners for lease in line.side._leased)]

    def _add(self, side: Any) -> Line:
        line = Line(side)
        self.lines.append(line)
        return line

    def _new_broker(self) -> Broker:
        return Broker(Timing(EXPIRY_S), lambda: self.now_s)
