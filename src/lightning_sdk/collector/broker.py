"""The broker between runners and workers: work.proto says what is said, this decides what follows from it.

Knows nothing of gRPC and of no clock but the one it is given, and keeps nothing that runners and workers could not
tell again: they say in their hello which leases they hold, and what only one of the two knows of waits for the other
one, or expires.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from lightning_sdk._proto.work_pb2 import (
    Capacity,
    FromRunner,
    FromWorker,
    Heartbeat,
    Held,
    LeasedJob,
    LeasedResult,
    Lost,
    Pool,
    Released,
    RunnerHello,
    Slot,
    ToRunner,
    ToWorker,
    Welcome,
    WorkerHello,
)
from lightning_sdk.collector.work_peers import (
    MAX_AGENTS,
    MAX_JOB_BYTES,
    MAX_PEERS,
    MAX_RESULT_BYTES,
    MAX_WANTED,
    Lease,
    Outbox,
    Runner,
    State,
    Timing,
    Worker,
    check_agent,
    check_held,
    check_hello,
    check_id,
)
from lightning_sdk.errors import CollectorError, WireError

# Slots of one worker, or of one runner, that wait for their job: so many jobs may be on their way at once.
_MAX_ALLOTTED: Final = 16


class Broker:
    """All of it, for one thread."""

    def __init__(self, timing: Timing, clock: Callable[[], float] = time.monotonic) -> None:
        self._timing = timing
        self._clock = clock
        self._workers: dict[str, Worker] = {}
        self._runners: dict[str, Runner] = {}
        self._served = 0

    # -- runners -----------------------------------------------------------------------------------------------

    def runner_joins(self, hello: RunnerHello, out: Outbox) -> Runner:
        """A runner has connected; what `out` of it there was before is over.

        Raises:
            WireError: its hello cannot be.
            CollectorError: there are too many.
        """
        check_id(hello.runner, "the id of a runner")
        held = check_held(hello.held)
        runner = self._runner(hello.runner)
        if runner.out is not None:
            runner.out.close("the runner has connected anew")
        runner.out, runner.heard_s, runner.wanted = out, self._clock(), {}
        out.put(ToRunner(welcome=self._welcome()))
        out.put(ToRunner(capacity=self._capacity()))
        for lease in list(runner.leases.values()):
            if lease.id not in held:
                self._detach(lease)
            elif lease.state == "allotted":
                # The runner has answered, but its job did not arrive.
                self._drop(lease)
                out.put(ToRunner(returned=lease.id))
            elif lease.state == "ended":
                # Its worker answers with the result once more.
                lease.told = None
                _tell_worker(lease.worker, ToWorker(cancel=lease.id))
        for each in held.values():
            if each.lease not in runner.leases:
                self._claim(runner, each)
        self._allot()
        return runner

    def runner_says(self, runner: Runner, message: FromRunner) -> None:
        """A message of a runner that has joined.

        Raises:
            WireError: it cannot be.
        """
        runner.heard_s = self._clock()
        kind = message.WhichOneof("message")
        if kind == "wanted":
            self._want(runner, message.wanted.agent, message.wanted.more)
        elif kind == "job":
            self._start(runner, message.job)
        elif kind == "decline":
            lease = runner.leases.get(message.decline)
            if lease is not None and lease.state == "allotted":
                self._drop(lease)
                self._allot()
        elif kind == "cancel":
            lease = runner.leases.get(message.cancel)
            if lease is not None:
                lease.cancelled = True
                _tell_worker(lease.worker, ToWorker(cancel=lease.id))
        elif kind == "settled":
            lease = runner.leases.get(message.settled)
            if lease is not None:
                self._detach(lease)
        elif kind == "heartbeat":
            if runner.out is not None:
                runner.out.put(ToRunner(heartbeat=Heartbeat()))
        elif kind == "goodbye":
            self._give_up_runner(runner)
        else:
            raise WireError(f"a runner said {kind or 'nothing'} after its hello")

    def runner_left(self, runner: Runner, out: Outbox) -> None:
        """Its connection is over; it may come back."""
        if runner.out is out:
            runner.out, runner.heard_s, runner.wanted = None, self._clock(), {}

    # -- workers -----------------------------------------------------------------------------------------------

    def worker_joins(self, hello: WorkerHello, out: Outbox) -> Worker:
        """As `runner_joins`."""
        check_hello(hello)
        held = check_held(hello.held)
        worker = self._worker(hello.worker)
        if worker.out is not None:
            worker.out.close("the worker has connected anew")
        worker.out, worker.heard_s = out, self._clock()
        worker.name, worker.agents = hello.name, frozenset(hello.agents)
        worker.slots, worker.draining = hello.slots, hello.draining
        out.put(ToWorker(welcome=self._welcome()))
        for lease in list(worker.leases.values()):
            if lease.state == "allotted":
                continue
            known = held.get(lease.id)
            if known is not None and lease.is_of(known):
                lease.state = "ended" if known.ended else "running"
                if lease.runner is not None and not lease.cancelled:
                    continue
            out.put(ToWorker(cancel=lease.id))
        for each in held.values():
            if each.lease not in worker.leases:
                self._recover(worker, each)
        self._tell_capacity()
        self._allot()
        return worker

    def worker_says(self, worker: Worker, message: FromWorker) -> None:
        """As `runner_says`."""
        worker.heard_s = self._clock()
        kind = message.WhichOneof("message")
        if kind == "result":
            self._end(worker, message.result)
        elif kind == "released":
            self._release(worker, message.released)
        elif kind == "draining":
            worker.draining = True
            self._tell_capacity()
        elif kind == "heartbeat":
            _tell_worker(worker, ToWorker(heartbeat=Heartbeat()))
        elif kind == "goodbye":
            self._give_up_worker(worker, f"the worker {worker.name} was stopped")
        else:
            raise WireError(f"a worker said {kind or 'nothing'} after its hello")

    def worker_left(self, worker: Worker, out: Outbox) -> None:
        """As `runner_left`."""
        if worker.out is out:
            worker.out, worker.heard_s = None, self._clock()
            self._tell_capacity()

    # -- time --------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Give up whoever has been silent for too long. To be called every now and then."""
        latest_s = self._clock() - self._timing.expiry_s
        for worker in list(self._workers.values()):
            if worker.heard_s < latest_s:
                name = f"the worker {worker.name}" if worker.name else "its worker"
                self._give_up_worker(worker, f"{name} was not heard of for {self._timing.expiry_s:g} s")
        for runner in list(self._runners.values()):
            if runner.heard_s < latest_s:
                self._give_up_runner(runner)
                continue
            for lease in list(runner.leases.values()):
                if lease.state == "allotted" and lease.since_s < latest_s:
                    self._drop(lease)
        self._allot()

    # -- leases ------------------------------------------------------------------------------------------------

    def _start(self, runner: Runner, job: LeasedJob) -> None:
        if len(job.job) > MAX_JOB_BYTES:
            raise WireError(f"a job of {len(job.job)} bytes: expected at most {MAX_JOB_BYTES}")
        check_id(job.rollout_id, "the id of a rollout")
        lease = runner.leases.get(job.lease)
        if lease is not None and lease.state != "allotted":
            raise WireError("a second job for the same lease")
        if lease is None or lease.worker.out is None or lease.worker.draining:
            if lease is not None:
                self._drop(lease)
            _tell_runner(runner, ToRunner(returned=job.lease))
            return
        lease.state, lease.rollout_id, lease.attempt = "running", job.rollout_id, job.attempt
        forwarded = LeasedJob()
        forwarded.CopyFrom(job)
        forwarded.runner = runner.id
        lease.worker.out.put(ToWorker(job=forwarded))
        self._allot()

    def _end(self, worker: Worker, result: LeasedResult) -> None:
        if len(result.result) > MAX_RESULT_BYTES:
            raise WireError(f"a result of {len(result.result)} bytes: expected at most {MAX_RESULT_BYTES}")
        lease = worker.leases.get(result.lease)
        if lease is None or lease.runner is None or not lease.is_of(result):
            # Of a lease that was lost or given up: too late.
            if lease is not None and lease.runner is None:
                self._drop(lease)
            _tell_worker(worker, ToWorker(settled=result.lease))
        else:
            lease.state = "ended"
            out = lease.runner.out
            if out is not None and lease.told is not out:
                lease.told = out
                out.put(ToRunner(result=result))
        self._allot()

    def _release(self, worker: Worker, released: Released) -> None:
        lease = worker.leases.get(released.lease)
        if lease is None or lease.state == "allotted":
            return
        self._drop(lease)
        if lease.runner is not None:
            reason = f"the worker {worker.name} has given it up"
            _tell_runner(
                lease.runner, _lost(lease, reason) if released.begun else ToRunner(returned=lease.id)
            )
        self._allot()

    def _claim(self, runner: Runner, held: Held) -> None:
        """A runner holds a lease that we do not know of as its own."""
        worker = self._worker(held.peer)
        if held.lease in worker.leases:
            # Its worker was told to end it.
            _tell_runner(runner, ToRunner(lost=Lost(lease=held.lease, reason="its worker has ended it")))
            return
        self._add(held, runner, worker)
        # A worker that is here has said all that it holds: this was never begun, or is lost.
        _tell_worker(worker, ToWorker(cancel=held.lease))

    def _recover(self, worker: Worker, held: Held) -> None:
        """A worker holds a lease that we do not know of."""
        runner = self._runner(held.peer)
        wanted = runner.out is None
        self._add(held, runner if wanted else None, worker)
        if not wanted:
            # The runner is here, has said all that it holds, and this is not among it.
            _tell_worker(worker, ToWorker(cancel=held.lease))

    def _add(self, held: Held, runner: Runner | None, worker: Worker) -> None:
        state: State = "ended" if held.ended else "running"
        lease = Lease(held.lease, runner, worker, state, self._clock(), held.rollout_id, held.attempt)
        worker.leases[lease.id] = lease
        if runner is not None:
            runner.leases[lease.id] = lease

    def _detach(self, lease: Lease) -> None:
        """Its runner wants nothing of it any more."""
        if lease.state == "allotted":
            self._drop(lease)
        elif lease.state == "ended":
            self._drop(lease)
            _tell_worker(lease.worker, ToWorker(settled=lease.id))
        else:
            if lease.runner is not None:
                lease.runner.leases.pop(lease.id, None)
            lease.runner = None
            _tell_worker(lease.worker, ToWorker(cancel=lease.id))

    def _drop(self, lease: Lease) -> None:
        lease.worker.leases.pop(lease.id, None)
        if lease.runner is not None:
            lease.runner.leases.pop(lease.id, None)

    # -- who is there ------------------------------------------------------------------------------------------

    def _give_up_worker(self, worker: Worker, reason: str) -> None:
        if self._workers.pop(worker.id, None) is None:
            return
        for lease in list(worker.leases.values()):
            self._drop(lease)
            # Of a slot without a job the runner will hear when it answers.
            if lease.runner is not None and lease.state != "allotted":
                _tell_runner(lease.runner, _lost(lease, reason))
        if worker.out is not None:
            worker.out.close("not heard of for too long")
            worker.out = None
        self._tell_capacity()

    def _give_up_runner(self, runner: Runner) -> None:
        if self._runners.pop(runner.id, None) is None:
            return
        for lease in list(runner.leases.values()):
            self._detach(lease)
        if runner.out is not None:
            runner.out.close("not heard of for too long")
            runner.out = None
        self._allot()

    def _worker(self, worker_id: str) -> Worker:
        worker = self._workers.get(worker_id)
        if worker is None:
            _check_room(len(self._workers), "workers")
            worker = self._workers[worker_id] = Worker(worker_id, self._clock())
        return worker

    def _runner(self, runner_id: str) -> Runner:
        runner = self._runners.get(runner_id)
        if runner is None:
            _check_room(len(self._runners), "runners")
            runner = self._runners[runner_id] = Runner(runner_id, self._clock())
        return runner

    def _welcome(self) -> Welcome:
        return Welcome(
            heartbeat_ms=round(self._timing.heartbeat_s * 1000), expiry_ms=round(self._timing.expiry_s * 1000)
        )

    def _capacity(self) -> Capacity:
        pools: Counter[frozenset[str]] = Counter()
        for worker in self._workers.values():
            if worker.out is not None and not worker.draining:
                pools[worker.agents] += worker.slots
        return Capacity(pools=[Pool(agents=sorted(agents), slots=slots) for agents, slots in pools.items()])

    def _tell_capacity(self) -> None:
        capacity = ToRunner(capacity=self._capacity())
        for runner in self._runners.values():
            _tell_runner(runner, capacity)

    # -- slots -------------------------------------------------------------------------------------------------

    def _want(self, runner: Runner, agent: str, more: int) -> None:
        check_agent(agent)
        if agent not in runner.wanted and len(runner.wanted) >= MAX_AGENTS:
            raise WireError(f"a runner wants more than {MAX_AGENTS} agents")
        wanted = runner.wanted.get(agent, 0) + more
        if abs(wanted) > MAX_WANTED:
            raise WireError(f"a runner wants {wanted} slots: expected at most {MAX_WANTED}")
        if wanted:
            runner.wanted[agent] = wanted
        else:
            runner.wanted.pop(agent, None)
        self._allot()

    def _allot(self) -> None:
        """Give free slots away, one after another: each to the runner that has the fewest."""
        if not any(runner.wanted for runner in self._runners.values()):
            return
        free = [worker for worker in self._workers.values() if worker.free > 0]
        while free:
            # The least loaded workers first, one slot of each.
            free.sort(key=lambda worker: -worker.free)
            free = [worker for worker in free if self._allot_one(worker) and worker.free > 0]

    def _allot_one(self, worker: Worker) -> bool:
        if _allotted(worker) >= _MAX_ALLOTTED:
            return False
        asking = [
            runner
            for runner in self._runners.values()
            if runner.out is not None
            and any(runner.wanted.get(agent, 0) > 0 for agent in runner.wanted.keys() & worker.agents)
            and _allotted(runner) < _MAX_ALLOTTED
        ]
        if not asking:
            return False
        runner = min(asking, key=lambda each: (each.busy, each.served))
        agent = max(runner.wanted.keys() & worker.agents, key=lambda each: runner.wanted[each])
        self._served += 1
        runner.served = self._served
        self._want_less(runner, agent)
        lease = Lease(secrets.token_hex(16), runner, worker, "allotted", self._clock())
        worker.leases[lease.id] = runner.leases[lease.id] = lease
        slot = Slot(lease=lease.id, agent=agent, worker=worker.id, worker_name=worker.name)
        _tell_runner(runner, ToRunner(slot=slot))
        return True

    @staticmethod
    def _want_less(runner: Runner, agent: str) -> None:
        runner.wanted[agent] -= 1
        if not runner.wanted[agent]:
            del runner.wanted[agent]


def _allotted(peer: Worker | Runner) -> int:
    return sum(lease.state == "allotted" for lease in peer.leases.values())


def _tell_worker(worker: Worker, message: ToWorker) -> None:
    if worker.out is not None:
        worker.out.put(message)


def _tell_runner(runner: Runner, message: ToRunner) -> None:
    if runner.out is not None:
        runner.out.put(message)


def _lost(lease: Lease, reason: str) -> ToRunner:
    return ToRunner(lost=Lost(lease=lease.id, reason=reason))


def _check_room(count: int, what: str) -> None:
    if count >= MAX_PEERS:
        raise CollectorError(f"{count} {what} are connected already, as many as may be: try again later")
