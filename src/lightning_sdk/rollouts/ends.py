"""Recording the ends that attempts could not record themselves: they were killed, or are out of reach."""

from __future__ import annotations

import logging

from lightning_sdk.client.config import Config
from lightning_sdk.client.ends import write_end
from lightning_sdk.client.producer import Producer
from lightning_sdk.errors import SpoolError
from lightning_sdk.rollouts.job import Job, Result

_log = logging.getLogger(__name__)

# How long a collector has to acknowledge ends; what it does not stays in the spool.
_FLUSH_TIMEOUT_S = 5.0


class EndWriter:
    """Writes as a producer of its own, which is made with the first end. Not thread-safe."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._producer: Producer | None = None
        self._told = False

    def write(self, job: Job, result: Result) -> None:
        """Record how an attempt ended, unless it did so itself."""
        if result.end_written or result.outcome == "succeeded":
            return
        try:
            write_end(
                self._sink(),
                rollout_id=job.rollout_id,
                attempt=job.attempt,
                group_id=job.group_id,
                run_id=job.run_id,
                project=job.project,
                outcome=result.outcome,
                task_id=job.task.task_id,
                split=job.split,
                metadata={**job.metadata, **job.task.metadata},
                error=(result.error_type, result.error_message or "") if result.error_type else None,
                truncation_reason=result.truncation_reason if result.outcome == "truncated" else None,
            )
        except SpoolError as error:
            if not self._told:
                self._told = True
                _log.warning("rollouts stay running whose end cannot be recorded (said once): %s", error)

    def flush(self) -> None:
        """Let the collector know of them, for a bounded time."""
        if self._producer is not None:
            self._producer.flush(_FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Flush, and give up the segment. Idempotent."""
        if self._producer is not None:
            self._producer.close(_FLUSH_TIMEOUT_S)

    def _sink(self) -> Producer:
        if self._producer is None:
            self._config.home.ensure()
            self._producer = Producer(
                self._config.home.spool, destination=self._config.endpoint, token=self._config.token
            )
        return self._producer
