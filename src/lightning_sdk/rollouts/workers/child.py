"""The program of a worker process: takes jobs on one pipe, one JSON a line, and answers on another.

    job      → {"started": true}      just before the agent is called
             → {"result": {…}, "spent": false}   spent: it is fit for no further job

Standard input is empty, and standard output and error belong to the agent. The pipes are not inherited by what
the agent starts or forks. The process ends when its job pipe is closed, and is killed by the kernel when its runner
dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
from typing import Any, BinaryIO, Final

import orjson

from lightning_sdk.rollouts.execution import run_job
from lightning_sdk.rollouts.job import Job

# What an agent has printed is thrown away when a new rollout begins after so many bytes.
_MAX_OUTPUT_BYTES: Final = 64 << 20
_PR_SET_PDEATHSIG: Final = 1


def main(jobs_fd: int, answers_fd: int, parent_pid: int, name: str) -> None:
    """Run jobs until there are no more.

    Args:
        jobs_fd: the pipe that jobs come from.
        answers_fd: the pipe that answers go to.
        parent_pid: the runner's, without which this process has no purpose.
        name: what results say where they ran.
    """
    _die_with(parent_pid)
    # Ctrl-C in the terminal is the runner's to act upon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd in (jobs_fd, answers_fd):
        os.set_inheritable(fd, False)
    os.register_at_fork(after_in_child=lambda: _let_go(jobs_fd, answers_fd))
    log = os.fstat(1)
    with (
        os.fdopen(jobs_fd, "rb", closefd=False) as jobs,
        os.fdopen(answers_fd, "wb", closefd=False) as answers,
    ):
        while line := jobs.readline():
            job = Job.from_json(line)
            _limit_output()
            print(f"--- {job.rollout_id} attempt {job.attempt}", flush=True)  # noqa: T201 - the agent's own log
            pid = os.getpid()
            _seed(job.seed)
            result = run_job(job, worker=name, on_start=lambda: _answer(answers, {"started": True}))
            if os.getpid() != pid:
                os._exit(0)  # the agent forked, and its child came back to here
            _flush_output()
            spent = not _output_is(log)
            _answer(answers, {"result": orjson.Fragment(result.to_json()), "spent": spent})


def _answer(answers: BinaryIO, message: dict[str, Any]) -> None:
    answers.write(orjson.dumps(message) + b"\n")
    answers.flush()


def _seed(seed: int) -> None:
    """So that an agent which draws by chance does the same in the same rollout again."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _limit_output() -> None:
    if os.fstat(1).st_size > _MAX_OUTPUT_BYTES:
        os.ftruncate(1, 0)


def _output_is(log: os.stat_result) -> bool:
    """Whether the agent has left standard output and error open, so that nothing else gets their numbers."""
    try:
        return all(os.path.samestat(os.fstat(fd), log) for fd in (1, 2)) and not sys.stdout.closed
    except (OSError, AttributeError):
        return False


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The agent may have closed or replaced it.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _let_go(*fds: int) -> None:
    """A forked child of the agent's must neither take our jobs nor keep the pipes open."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _die_with(parent_pid: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
