"""What crosses the border to a worker: a `Job` is one attempt at one rollout, a `Result` what became of it.

Both are JSON and nothing else, so that a worker may be another process, another machine or another version.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, get_args

import orjson
from pydantic import TypeAdapter, ValidationError

from lightning_sdk.errors import WireError
from lightning_sdk.rollouts.tasks import Task

Outcome = Literal["succeeded", "failed", "truncated", "cancelled", "lost"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
# Why an attempt was truncated whose time was up.
TIMEOUT: Final = "timeout"

_T = TypeVar("_T", "Job", "Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One attempt at one rollout: all that a worker needs to run it."""

    rollout_id: str
    # From 1. Only the latest attempt of a rollout counts.
    attempt: int
    group_id: str
    run_id: str
    project: str
    split: str | None = None
    # The sampling round.
    round: int = 0
    task: Task
    # "module:function".
    agent: str
    seed: int = 0
    timeout_s: float | None = None
    # How model calls are routed: options of `lightning_sdk.init` (policy_endpoint, policy_token, agents).
    # Holds a secret: never in a log or a journal.
    routing: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # Kept with the rollout.
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """As one line of JSON, without the line's end.

        Raises:
            WireError: the task has a value that JSON does not have.
        """
        return _to_json(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Job:
        """What `to_json` wrote.

        Raises:
            WireError: it is something else.
        """
        return _from_json(_JOBS, data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one attempt."""

    rollout_id: str
    attempt: int
    outcome: Outcome
    # Qualified class name, message and traceback of what went wrong, without secrets.
    error_type: str | None = None
    error_message: str | None = None
    traceback: str | None = None
    # With "truncated": what cut it off, such as "timeout".
    truncation_reason: str | None = None
    start_ns: int
    end_ns: int
    # Which worker ran it, for people.
    worker: str = ""
    # Whether the rollout's end was recorded where it ran. If not (it was killed), the runner does it.
    end_written: bool = False

    def to_json(self) -> bytes:
        """As one line of JSON, without the line's end."""
        return _to_json(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Result:
        """What `to_json` wrote.

        Raises:
            WireError: it is something else.
        """
        return _from_json(_RESULTS, data)


def cancelled(job: Job, worker: str, message: str) -> Result:
    """The result of an attempt that was cancelled and could not tell it itself."""
    return ended_outside(job, "cancelled", "asyncio.CancelledError", message, worker=worker)


def ended_outside(
    job: Job, outcome: Outcome, error_type: str, message: str, *, worker: str, start_ns: int | None = None
) -> Result:
    """The result of an attempt of which only those around it can tell: it was killed, or died."""
    now_ns = time.time_ns()
    return Result(
        rollout_id=job.rollout_id,
        attempt=job.attempt,
        outcome=outcome,
        error_type=error_type,
        error_message=message,
        truncation_reason=TIMEOUT if outcome == "truncated" else None,
        start_ns=start_ns or now_ns,
        end_ns=now_ns,
        worker=worker,
    )


def _to_json(value: Job | Result) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise WireError(f"{value.rollout_id!r} cannot be written as JSON: {error}") from None


def _from_json(adapter: TypeAdapter[_T], data: bytes | str) -> _T:
    try:
        return adapter.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise WireError(
            f"{len(data)} bytes are no job and no result of a job: {where}: {first['msg']}"
        ) from None


_JOBS: TypeAdapter[Job] = TypeAdapter(Job)
_RESULTS: TypeAdapter[Result] = TypeAdapter(Result)
