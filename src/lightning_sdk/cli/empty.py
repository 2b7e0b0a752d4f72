"""Answers that are empty: why, and what may be meant instead."""

from __future__ import annotations

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli import wording
from lightning_sdk.cli.client_counters import outside_rollouts
from lightning_sdk.cli.reading import Source
from lightning_sdk.cli.spool_state import inspect_spool, waiting
from lightning_sdk.collector.reader import Reader
from lightning_sdk.errors import SpoolError


def nothing_found(source: Source, reader: Reader, query: RolloutQuery | None = None) -> str:
    """Why there is no rollout, in a sentence without its full stop.

    It names the filters, or the place; and records that wait for a collector, and calls outside any rollout,
    because either may be what was looked for.
    """
    filters = _filters(query or RolloutQuery())
    if filters:
        reason = f"no rollout matches {filters}: `lsdk rollouts` alone lists what there is"
    else:
        place = source.endpoint or source.home.path
        reason = f"no rollouts yet in {place}: run a program that uses @trace_agent"
    return "; ".join([reason, *_waiting(source), *outside_rollouts(reader.stats())])


def _filters(query: RolloutQuery) -> str:
    given = {"--project": query.project, "--task": query.task_id, "--run": query.run_id}
    return " ".join(f"{option} {wording.one_line(value)!r}" for option, value in given.items() if value)


def _waiting(source: Source) -> list[str]:
    try:
        return waiting(inspect_spool(source.home.spool), source.home)
    except SpoolError:
        return []  # with an endpoint, the spool here need not even be readable
