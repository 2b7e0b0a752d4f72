"""The end of a rollout that cannot tell it any more: its process was killed, or was lost.

Whoever runs rollouts writes it, so that none stays running for ever.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Final, Literal

from lightning_sdk.client.journal import told_error
from lightning_sdk.client.jsonable import object_to_json
from lightning_sdk.client.redact import redact
from lightning_sdk.client.runtime import Sink
from lightning_sdk.errors import ConfigError
from lightning_sdk.ids import fitted_id
from lightning_sdk.records import Join, Leave, Outcome, Record, RolloutEnd, RolloutStart

EndedAs = Literal["failed", "truncated", "cancelled", "lost"]

# A rollout that is cut off by its truncation reason was not finished; "lost" says nothing.
_OUTCOMES: Final[Mapping[EndedAs, Outcome]] = {
    "failed": Outcome.OUTCOME_ERROR,
    "truncated": Outcome.OUTCOME_CANCELLED,
    "cancelled": Outcome.OUTCOME_CANCELLED,
    "lost": Outcome.OUTCOME_UNSPECIFIED,
}


def write_end(
    sink: Sink,
    *,
    rollout_id: str,
    attempt: int,
    group_id: str,
    run_id: str,
    project: str,
    outcome: EndedAs,
    task_id: str | None = None,
    split: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    error: tuple[str, str] | None = None,
    truncation_reason: str | None = None,
) -> None:
    """Write the end of somebody else's attempt at a rollout, once for each attempt.

    Store and assembly then give it this outcome, unless the attempt tells a later end itself; one that was given
    up as "lost" has the outcome that it tells, whenever that comes. The rollout stays incomplete if a process that
    joined it never left: nobody knows how many records that one had written. Where none ever began, what is given
    here is all there is of the rollout.

    Args:
        sink: a `Producer` of the caller's own.
        rollout_id: of the rollout; as all ids and names here as it was given to `rollout`.
        attempt: from 1.
        group_id: the group that it was started in.
        run_id: the run that it was started in.
        project: the project that it was started in.
        outcome: how it ended. There is no "succeeded": that only the rollout itself can tell.
        task_id: of the rollout, where it has one.
        split: of the rollout, where it has one.
        metadata: of the rollout, for where it has not begun.
        error: type and message of what went wrong.
        truncation_reason: "timeout", "turn_limit", "context" or another word; with "truncated", and only then.

    Raises:
        ConfigError: outcome and truncation reason do not go together.
        SpoolError: it cannot be written.
    """
    if outcome not in _OUTCOMES or (outcome == "truncated") != bool(truncation_reason):
        raise ConfigError(
            f"an end with outcome {outcome!r} and truncation reason {truncation_reason!r}: expected one of "
            f"{', '.join(_OUTCOMES)}, and a reason with 'truncated' only"
        )
    # Of several starts the earliest counts: one of the rollout's own comes before this moment.
    start = RolloutStart(
        project=project,
        run_id=fitted_id(run_id),
        task_id=fitted_id(task_id or ""),
        split=fitted_id(split or ""),
        metadata=redact(object_to_json(metadata), None)[0] if metadata else b"",
    )
    end = RolloutEnd(
        outcome=_OUTCOMES[outcome],
        error=None if error is None else told_error(*error),
        truncation_reason=fitted_id(truncation_reason or ""),
    )
    records = [
        Record(join=Join(pid=os.getpid(), host=socket.gethostname())),
        Record(rollout_start=start),
        Record(rollout_end=end),
    ]
    records.append(Record(leave=Leave(count=len(records) + 1)))
    now_ns = time.time_ns()
    for record in records:
        record.order = sink.tick()
        record.start_ns = record.end_ns = now_ns
        record.rollout_id = fitted_id(rollout_id)
        record.attempt = attempt
        record.group_id = fitted_id(group_id)
        sink.write(record)
