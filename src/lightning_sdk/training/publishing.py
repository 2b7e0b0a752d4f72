"""What stands between a trainer and the endpoint's publisher: it measures, counts versions, and can say it again."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lightning_sdk.errors import PublishError
from lightning_sdk.plugins import Probe, Publisher


class KeptPublisher:
    """A `Publisher` that keeps the last weights of each policy, for an endpoint that was started again.

    Thread-safe: `publish` comes from the trainer, `again` from the thread that watches the endpoint.
    """

    def __init__(self, publisher: Publisher, directory: Path, wait_up: Callable[[], None]) -> None:
        """Wrap one.

        Args:
            publisher: where weights go.
            directory: takes a copy of the last weights of each policy.
            wait_up: waits while the endpoint is being started again.
        """
        self._publisher = publisher
        self._directory = directory
        self._wait_up = wait_up
        self._published: dict[str, tuple[Path, int, Probe | None]] = {}
        self._lock = threading.Lock()
        # Seconds spent in `publish` so far.
        self.seconds = 0.0

    @property
    def versions(self) -> dict[str, int]:
        """The version of each policy that was published."""
        return {policy: version for policy, (_, version, _) in self._published.items()}

    def publish(self, policy: str, weights: Path, *, version: int, probe: Probe | None = None) -> None:
        """See `Publisher.publish`. Where the endpoint died meanwhile it is published to the new one."""
        began_s = time.monotonic()
        try:
            with self._lock:
                kept = self._keep(policy, weights)
                self._published[policy] = (kept, version, probe)
            try:
                self._publish(policy, kept, version, probe)
            except PublishError:
                self._wait_up()
                self._publish(policy, kept, version, probe)
        finally:
            self.seconds += time.monotonic() - began_s

    def again(self) -> None:
        """Publish the last weights of every policy, as they were.

        Raises:
            PublishError: the endpoint does not take them.
        """
        with self._lock:
            for policy, (weights, version, probe) in self._published.items():
                self._publisher.publish(policy, weights, version=version, probe=probe)

    def _publish(self, policy: str, weights: Path, version: int, probe: Probe | None) -> None:
        with self._lock:
            self._publisher.publish(policy, weights, version=version, probe=probe)

    def _keep(self, policy: str, weights: Path) -> Path:
        """A copy of the weights, which takes the place of the one before when it is whole."""
        kept = self._directory / policy
        unfinished = self._directory / f".{policy}"
        shutil.rmtree(unfinished, ignore_errors=True)
        self._directory.mkdir(parents=True, exist_ok=True)
        shutil.copytree(weights, unfinished)
        shutil.rmtree(kept, ignore_errors=True)
        unfinished.rename(kept)
        return kept
