"""What every kind of worker is to the runner."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Protocol

from lightning_sdk.rollouts.job import Job, Result


class Workers(Protocol):
    """Runs jobs, at most `capacity` at once. All methods may be called from any thread. Kinds derive from it.

    Every job that was submitted comes back exactly once as a result, also one that was cancelled or whose worker
    died, unless `close` came first. A result may name an attempt that the runner has given up: it is fenced there.
    """

    kind: ClassVar[str]
    # Why a job's timeout cannot be kept, as the end of a sentence; None where it is kept.
    no_timeout: ClassVar[str | None]
    # How many jobs run at once at most. Of a kind whose workers come and go it changes.
    capacity: int

    def start(self) -> None:
        """Get ready.

        Raises:
            LightningError: it cannot be done; the message says what to change.
        """

    def takes(self, agent: str) -> bool:
        """Whether a job of this agent could be run now. Where all workers run any agent, `capacity` says it all."""
        return True

    def waits_for(self, agents: Collection[str]) -> str | None:
        """What has to happen before jobs run, for whoever looks on; None: nothing.

        Args:
            agents: those that `takes` refuses now, of jobs that are not submitted yet.
        """
        return None

    def submit(self, job: Job) -> None:
        """Run a job. Never blocks; the caller keeps at most `capacity` in flight."""

    def next_result(self, timeout_s: float | None) -> Result | None:
        """The next result, in the order in which jobs end; None when the time is up first.

        Raises:
            LightningError: no job can be run any more; the message says why.
        """

    def cancel(self, rollout_id: str, attempt: int) -> None:
        """End an attempt early, as far as the kind can: it comes back as cancelled, unless it ended just before."""

    def close(self) -> None:
        """End everything that runs, and let go of all that `start` took. Idempotent."""
