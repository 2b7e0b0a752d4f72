"""One attempt at one rollout, in the process where the agent runs: what every kind of worker calls."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import lightning_sdk
from lightning_sdk.client import runtime
from lightning_sdk.client.redact import redact_text
from lightning_sdk.errors import ConfigError
from lightning_sdk.rollouts.agents import is_async, load_agent
from lightning_sdk.rollouts.job import TIMEOUT, Job, Outcome, Result

# How long a collector has to acknowledge a rollout. What it has not then stays in the spool.
_FLUSH_TIMEOUT_S: Final = 10.0
# And once it has not answered in that time, until it does again.
_FLUSH_GLANCE_S: Final = 0.2
# How long a coroutine that was cancelled has to end.
CANCEL_GRACE_S: Final = 5.0
_MAX_MESSAGE_CHARACTERS: Final = 4000
_MAX_TRACEBACK_CHARACTERS: Final = 20_000


class AgentExited(Exception):  # noqa: N818 - not an error of ours: it says what the agent did
    """The agent called `sys.exit` with something that is no success."""


@dataclass(slots=True)
class _Ending:
    """How the agent's execution ended."""

    outcome: Outcome = "succeeded"
    error: BaseException | None = None
    truncation_reason: str | None = None
    # Whether the rollout's own context manager was left, and so wrote the end.
    left: bool = False
    start_ns: int = field(default_factory=time.time_ns)

    def leave(self, opened: lightning_sdk.rollout) -> None:
        """The rollout's block is about to be left."""
        top = opened._top
        self.left = top is not None
        if top is not None and top.rollout.truncation_reason:
            self.truncation_reason = top.rollout.truncation_reason


def run_job(job: Job, *, worker: str = "", on_start: Callable[[], object] = lambda: None) -> Result:
    """Import the agent, open the rollout, call the agent with the task's input, and wait for what it gives.

    A coroutine runs in an event loop of its own, a generator is read to its end. The job's timeout is for others
    to keep: nothing ends a function from inside.

    Args:
        job: what to run.
        worker: what the result says where it ran.
        on_start: called just before the agent is.

    Returns:
        What became of it; no exception of the agent's comes out. An agent that cannot be imported failed with
        an AgentError.
    """
    ending = _Ending()
    try:
        settle(job)
        agent = load_agent(job.agent)
        on_start()
        ending.start_ns = time.time_ns()
        with rollout_of(job) as opened:
            try:
                _call(agent, job.task.input)
            finally:
                ending.leave(opened)
    except BaseException as error:
        _blame(ending, error)
    flush()
    return _result(job, ending, worker)


async def run_job_async(
    job: Job, *, worker: str = "", on_start: Callable[[], object] = lambda: None
) -> Result:
    """As `run_job`, in the running event loop, for an agent that is a coroutine function.

    The job's timeout cancels the agent, as does a cancellation of this coroutine. An agent that goes on all the same
    is left to itself after five seconds: its result then says so, and that its end was not recorded.
    """
    ending = _Ending()
    running: asyncio.Task[None] | None = None
    try:
        settle(job)
        agent = load_agent(job.agent)
        if not is_async(agent):
            raise ConfigError(
                f"{job.agent} is no coroutine function, so it would stop all others in the event loop: "
                "take the kind threads or processes"
            )
        on_start()
        ending.start_ns = time.time_ns()
        running = asyncio.ensure_future(_in_rollout(job, agent, ending))
        await _within(running, job.timeout_s, ending)
    except BaseException as error:
        _blame(ending, error)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.shield(asyncio.to_thread(flush))
    return _result(job, ending, worker)


async def _in_rollout(job: Job, agent: Callable[[Any], Any], ending: _Ending) -> None:
    async with rollout_of(job) as opened:
        try:
            await _drain(agent(job.task.input))
        finally:
            if ending.truncation_reason == TIMEOUT:
                lightning_sdk.truncate(TIMEOUT)
            ending.leave(opened)


async def _within(running: asyncio.Task[None], timeout_s: float | None, ending: _Ending) -> None:
    """Wait for the agent until its time is up or we are cancelled; then cancel it, and wait a while longer."""
    cancelled = False
    try:
        done, _ = await asyncio.wait({running}, timeout=timeout_s)
        if done:
            running.result()
            return
        ending.truncation_reason = TIMEOUT
    except asyncio.CancelledError:
        if running.done():
            raise
        cancelled = True
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=CANCEL_GRACE_S)
    how = "it was cancelled" if cancelled else f"its time of {timeout_s:g} s was up"
    if not done:
        ending.left = False
        how += ", but its coroutine went on all the same, and may still run"
    ending.outcome = "cancelled" if cancelled else "truncated"
    ending.error = asyncio.CancelledError(how) if cancelled else TimeoutError(how)
    if done and not running.cancelled():
        running.exception()  # looked at, so that asyncio does not complain


def rollout_of(job: Job) -> lightning_sdk.rollout:
    """The rollout that a job is an attempt at, not yet entered."""
    return lightning_sdk.rollout(
        job.task.task_id,
        {**job.metadata, **job.task.metadata},
        run_id=job.run_id,
        split=job.split,
        group_id=job.group_id,
        round=job.round,
        rollout_id=job.rollout_id,
        attempt=job.attempt,
    )


def flush() -> None:
    """Let the collector acknowledge what was recorded, for a bounded time."""
    global _flush_timeout_s
    arrived = lightning_sdk.flush(_flush_timeout_s)
    _flush_timeout_s = _FLUSH_TIMEOUT_S if arrived else _FLUSH_GLANCE_S


_flush_timeout_s = _FLUSH_TIMEOUT_S
_settling = threading.Lock()
_settled: dict[str, Any] | None = None


def settle(job: Job) -> None:
    """Initialise the client for a job's project and routing, where it is not already.

    Where records go is a matter of the environment (`LIGHTNING_HOME`, `LIGHTNING_ENDPOINT` …), unless the
    program has called `init` itself.

    Raises:
        ConfigError: the program has called `init` with another project or routing.
    """
    global _settled
    wanted: dict[str, Any] = {"project": job.project, **job.routing}
    with _settling:
        if runtime.is_capturing() or (_settled == wanted and runtime.configured() is not None):
            return
        if _settled is not None and _settled != wanted:
            lightning_sdk.shutdown()
        with warnings.catch_warnings():
            # What the warning says is checked below.
            warnings.simplefilter("ignore", RuntimeWarning)
            lightning_sdk.init(**_init_options(wanted))
        _check_taken(wanted)
        _settled = wanted


def _init_options(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration that the program gave already stays as it is, but for what the job says."""
    present = runtime.configured()
    if present is None or not present.explicit:
        return dict(wanted)
    return {name: value for name, value in wanted.items() if name != "project"}


def _check_taken(wanted: Mapping[str, Any]) -> None:
    present = runtime.configured()
    if present is None:
        return
    for name, value in wanted.items():
        taken = getattr(present.config, name, value)
        if name != "project" and value and taken != value and name != "agents":
            raise ConfigError(
                f"the program called init() with another {name} than this run has: leave init() to the run"
            )


def _call(agent: Callable[[Any], Any], task: Any) -> None:
    try:
        given = agent(task)
        if inspect.isawaitable(given) or hasattr(given, "__aiter__"):
            asyncio.run(_drain(given))
        elif inspect.isgenerator(given):
            for _ in given:
                pass
    except SystemExit as error:
        if error.code not in (None, 0):
            raise AgentExited(f"the agent called sys.exit({error.code!r})") from error


async def _drain(given: Any) -> None:
    if hasattr(given, "__aiter__"):
        async for _ in given:
            pass
    elif inspect.isawaitable(given):
        await given


def _blame(ending: _Ending, error: BaseException) -> None:
    if ending.outcome == "succeeded":
        cancelled = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit)
        ending.outcome = "cancelled" if cancelled else "failed"
        ending.error = error


def _result(job: Job, ending: _Ending, worker: str) -> Result:
    error = ending.error
    outcome: Outcome = "truncated" if ending.truncation_reason else ending.outcome
    return Result(
        rollout_id=job.rollout_id,
        attempt=job.attempt,
        outcome=outcome,
        error_type=None if error is None else type_name(error),
        error_message=None if error is None else _safe(_message_of(error), _MAX_MESSAGE_CHARACTERS),
        traceback=None if error is None else _safe(_traceback_of(error), _MAX_TRACEBACK_CHARACTERS),
        truncation_reason=ending.truncation_reason,
        start_ns=ending.start_ns,
        end_ns=time.time_ns(),
        worker=worker,
        end_written=ending.left,
    )


def type_name(error: BaseException) -> str:
    """The qualified name of an exception's class, as it is in records."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception of the agent's may say anything
        return ""


def _traceback_of(error: BaseException) -> str:
    """From the agent's first line on: the lines above are ours."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except Exception:
        return ""


def _safe(text: str, most: int) -> str:
    """Without secrets or half characters; of what is too long, the end, where a traceback says the most."""
    encodable = text.encode("utf-8", "backslashreplace").decode()
    return redact_text(encodable[-most:])
