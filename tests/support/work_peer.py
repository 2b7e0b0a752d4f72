"""A worker or runner by hand: says what the test wants, and keeps what the broker answers."""

from __future__ import annotations

import queue
import threading
from typing import Any

import grpc

from lightning_sdk._proto.work_pb2 import FromRunner, FromWorker, Held, LeasedJob, LeasedResult, WorkerHello
from lightning_sdk._proto.work_pb2_grpc import WorkStub
from lightning_sdk.rollouts.job import Outcome, Result


class Peer:
    """One connection to the Work service at "host:port"."""

    def __init__(self, target: str, method: str, first: FromWorker | FromRunner) -> None:
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # With which status the stream ended.
        self.status: grpc.StatusCode | None = None
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(target)
        self.say(first)
        self._call = getattr(WorkStub(self._channel), method)(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def say(self, message: FromWorker | FromRunner) -> None:
        self._requests.put(message)

    def next(self, kind: str) -> Any:
        """The next answer of this kind; those before it are passed over."""
        while True:
            answer = self.answers.get(timeout=30)
            assert answer is not None, f"the stream ended with {self.status}"
            if answer.WhichOneof("message") == kind:
                return getattr(answer, kind)

    def end(self) -> None:
        """Break the connection, without a goodbye."""
        self._call.cancel()
        self._requests.put(None)
        self._thread.join()
        self._channel.close()

    def wait_end(self) -> grpc.StatusCode | None:
        self._thread.join(30)
        self.end()
        return self.status

    def _read(self) -> None:
        try:
            for answer in self._call:
                self.answers.put(answer)
        except grpc.RpcError as error:
            self.status = error.code()
        self.answers.put(None)


def worker_by_hand(target: str, *agents: str, worker: str = "w", slots: int = 1, held: Any = ()) -> Peer:
    hello = WorkerHello(worker=worker, name=worker, agents=agents, slots=slots, held=held)
    return Peer(target, "Take", FromWorker(hello=hello))


def held(job: LeasedJob, *, ended: bool) -> Held:
    return Held(lease=job.lease, peer=job.runner, rollout_id=job.rollout_id, attempt=job.attempt, ended=ended)


def result_of(job: LeasedJob, outcome: Outcome = "succeeded", worker: str = "") -> FromWorker:
    result = Result(
        rollout_id=job.rollout_id,
        attempt=job.attempt,
        outcome=outcome,
        start_ns=1,
        end_ns=2,
        worker=worker,
        end_written=True,
    )
    return raw_result(job, result.to_json())


def raw_result(job: LeasedJob, data: bytes) -> FromWorker:
    return FromWorker(
        result=LeasedResult(lease=job.lease, rollout_id=job.rollout_id, attempt=job.attempt, result=data)
    )
