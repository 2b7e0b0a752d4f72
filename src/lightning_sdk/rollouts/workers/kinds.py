"""The kinds of workers by name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lightning_sdk.errors import ConfigError
from lightning_sdk.rollouts.workers.base import Workers

KINDS: Final = ("processes", "threads", "async", "ray", "remote")
DEFAULT_KIND: Final = "processes"


def make_workers(
    kind: str,
    capacity: int,
    *,
    output: Path | None = None,
    ray_address: str | None = None,
    endpoint: str | None = None,
    token: str | None = None,
) -> Workers:
    """Workers that are not started yet.

    Args:
        kind: one of KINDS.
        capacity: how many rollouts run at once; with the kind remote its workers say that.
        output: where processes write what agents print.
        ray_address: of the Ray cluster, "auto" for the one of this machine. Default: Ray starts one here.
        endpoint: of the collector that remote workers ask for jobs.
        token: the collector's.

    Raises:
        ConfigError: there is no such kind, or it needs something that is not installed.
    """
    # Each imports only what it needs.
    if kind == "processes":
        from lightning_sdk.rollouts.workers.processes import ProcessWorkers

        return ProcessWorkers(capacity, output=output)
    if kind == "threads":
        from lightning_sdk.rollouts.workers.threads import ThreadWorkers

        return ThreadWorkers(capacity)
    if kind == "async":
        from lightning_sdk.rollouts.workers.coroutines import AsyncWorkers

        return AsyncWorkers(capacity)
    if kind == "ray":
        from lightning_sdk.rollouts.workers.ray_actors import RayWorkers

        return RayWorkers(capacity, address=ray_address)
    if kind == "remote":
        from lightning_sdk.rollouts.workers.remote import RemoteWorkers

        return RemoteWorkers(endpoint, token)
    raise ConfigError(f"no kind of workers is called {kind!r}: there are {', '.join(KINDS)}")
