"""One worker process as its keeper sees it: started, spoken with, and killed with all that it started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from lightning_sdk.errors import WireError
from lightning_sdk.rollouts.job import Job, Outcome, Result, ended_outside

# How long the import of the agent may take, which is not part of its timeout.
START_TIMEOUT_S: Final = 600.0
_MAX_LINE_BYTES: Final = 16 << 20
# Of whoever runs the agent, not of the agent: with these it could publish weights, or use the upstream's key.
NOT_FOR_AGENTS: Final = ("LIGHTNING_ADMIN_TOKEN", "LIGHTNING_UPSTREAM_TOKEN")

Ending = Literal["timeout", "cancelled", "died"]


class WorkerProcess:
    """Started by the constructor, in a session and process group of its own. Used by one thread, which must live as
    long: the kernel kills the process when the thread that started it ends.
    """

    def __init__(self, name: str, output: Path | None, environment: Mapping[str, str], wake_fd: int) -> None:
        """Start it.

        Args:
            name: what its results say where they ran.
            output: the file that what the agent prints is appended to; None: nowhere.
            environment: variables beside ours, of which it gets all but NOT_FOR_AGENTS.
            wake_fd: readable when somebody wants something while we wait.
        """
        self.name = name
        jobs_read, self._jobs_fd = os.pipe()
        self._answers_fd, answers_write = os.pipe()
        log = os.open(output or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-u", "-m", "lightning_sdk.rollouts.workers.child"),
                    *(str(jobs_read), str(answers_write), str(os.getpid()), name),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(jobs_read, answers_write),
                env={**_for_agents(os.environ), **environment},
                start_new_session=True,
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            for fd in (jobs_read, answers_write, log):
                os.close(fd)
        self._buffer = bytearray()
        self._wake_fd = wake_fd
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers_fd, selectors.EVENT_READ)
        self._selector.register(wake_fd, selectors.EVENT_READ)
        # The end of the pipe comes late where something that the agent forked holds it: the kernel tells at once.
        self._pid_fd = os.pidfd_open(self._process.pid)
        self._selector.register(self._pid_fd, selectors.EVENT_READ)
        # How many jobs it was given; whether it has said that it can take no more.
        self.jobs = 0
        self.spent = False

    def run(self, job: Job, is_wanted: Callable[[], bool]) -> Result:
        """Run one job to its end, whatever that is.

        Args:
            job: what to run.
            is_wanted: asked whenever `wake_fd` is readable; once it says False, the job is cancelled.

        Returns:
            Its result. Unless it came from the process itself, the process is dead (`alive`).
        """
        self.jobs += 1
        start_ns, deadline = time.time_ns(), time.monotonic() + START_TIMEOUT_S
        try:
            self._send(job.to_json() + b"\n")
        except OSError:
            return self._killed(job, "died", start_ns)
        try:
            return self._follow(job, is_wanted, start_ns, deadline)
        except WireError:
            return self._killed(job, "died", start_ns)

    def _follow(self, job: Job, is_wanted: Callable[[], bool], start_ns: int, deadline: float) -> Result:
        importing = True
        while True:
            answer = self._answer(deadline, is_wanted)
            if isinstance(answer, str):
                return self._killed(job, answer, start_ns, importing=importing)
            if "result" in answer:
                self.spent = answer.get("spent") is True
                return Result.from_json(orjson.dumps(answer["result"]))
            importing, start_ns = False, time.time_ns()
            deadline = float("inf") if job.timeout_s is None else time.monotonic() + job.timeout_s

    @property
    def alive(self) -> bool:
        """Whether it can take another job."""
        return self._process.returncode is None

    def ask_to_end(self) -> None:
        """No more jobs come: it may flush, and end."""
        os.close(self._jobs_fd)
        self._jobs_fd = -1

    def kill(self) -> int:
        """Kill it and all of its group, and let go of it; returns its exit status, negative for a signal."""
        if self._process.returncode is None:
            # The group before the leader is reaped, so that its number cannot be another's by then.
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self._process.kill()
            self._process.wait()
            self._selector.close()
            os.close(self._pid_fd)
            self._close_pipes()
        return self._process.returncode

    def wait_end(self, timeout_s: float) -> None:
        """Wait until it has ended, and sweep up what it left behind."""
        with selectors.DefaultSelector() as ended:
            ended.register(self._pid_fd, selectors.EVENT_READ)
            ended.select(max(timeout_s, 0.0))
        self.kill()

    def _send(self, data: bytes) -> None:
        """The process reads one job at a time and is waiting for this one, so this never blocks for long."""
        while data:
            data = data[os.write(self._jobs_fd, data) :]

    def _answer(self, deadline: float, is_wanted: Callable[[], bool]) -> dict[str, Any] | Ending:
        """The next thing that the process says, or why it says nothing more."""
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                return _message(bytes(line))
            if len(self._buffer) > _MAX_LINE_BYTES:
                return "died"
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return "timeout"
            ready = {key.fd for key, _ in self._selector.select(None if left_s == float("inf") else left_s)}
            if self._wake_fd in ready:
                os.read(self._wake_fd, 4096)
                if not is_wanted():
                    return "cancelled"
            if self._answers_fd in ready:
                data = os.read(self._answers_fd, 1 << 16)
                self._buffer += data
                if not data:
                    return "died"
            elif self._pid_fd in ready:
                return "died"

    def _killed(self, job: Job, ending: Ending, start_ns: int, *, importing: bool = False) -> Result:
        """Kill the process, and tell for it how the attempt ended."""
        status = self._exit_status()
        self.kill()
        outcome: Outcome = "lost"
        kind, message = "WorkerLost", _how_it_died(status)
        if ending == "cancelled":
            outcome, kind, message = (
                "cancelled",
                "asyncio.CancelledError",
                "it was cancelled, its process killed",
            )
        elif ending == "timeout" and importing:
            outcome, kind = "failed", "TimeoutError"
            message = (
                f"the agent {job.agent} was not imported after {START_TIMEOUT_S:g} s: its process was killed"
            )
        elif ending == "timeout":
            outcome, kind = "truncated", "TimeoutError"
            message = f"its time of {job.timeout_s:g} s was up: its process was killed"
        return ended_outside(job, outcome, kind, message, worker=self.name, start_ns=start_ns)

    def _exit_status(self) -> int | None:
        """Its exit status (negative: the signal that killed it) without reaping it; None while it lives."""
        patience_s = time.monotonic() + 1.0
        while True:
            found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if found is not None:
                return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            with selectors.DefaultSelector() as ended:
                # Its pipe may close a moment before it has ended.
                ended.register(self._pid_fd, selectors.EVENT_READ)
                if time.monotonic() >= patience_s or not ended.select(0.2):
                    return None

    def _close_pipes(self) -> None:
        os.close(self._answers_fd)
        if self._jobs_fd >= 0:
            os.close(self._jobs_fd)
            self._jobs_fd = -1


def _for_agents(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in NOT_FOR_AGENTS}


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise WireError(f"a worker process said {line[:80]!r}, which is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError(f"a worker process said {line[:80]!r}: expected a JSON object")
    return message


def _how_it_died(status: int | None) -> str:
    if status is None:
        return "its process closed the connection to the runner, and was killed"
    if status >= 0:
        return f"its process ended with exit status {status} in the middle of the rollout"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (out of memory?)" if status == -signal.SIGKILL else ""
    return f"its process was killed by {name}{hint}"
