"""What commands that read have in common: where records are read from, and rollouts as episodes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import click

from lightning_sdk._proto.read_pb2 import RolloutQuery, RolloutSummary, Stats
from lightning_sdk.client.segments import list_segments
from lightning_sdk.collector.reader import Reader, open_reader
from lightning_sdk.collector.store.base import SourcedRollout
from lightning_sdk.collector.store.schema import COUNTERS, SCHEMA_VERSION
from lightning_sdk.home import Home
from lightning_sdk.mdp import CallView, Episode, assemble, decode_call
from lightning_sdk.records import SourcedRecord

# The outcome of a rollout of which no process has told that it began.
UNKNOWN: Final = "unknown"
_REWARDS_ONLY: Final = frozenset({"reward", "join", "leave"})


@dataclass(frozen=True)
class Source:
    """Where a command reads from."""

    home: Home
    endpoint: str | None
    token: str | None

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Open it; adopts the spool first, where nobody serves the store. Makes nothing where nothing is.

        Raises:
            LightningError: it cannot be reached or read.
        """
        if not (self.endpoint or os.path.exists(self.home.store) or list_segments(self.home.spool)):  # noqa: PTH110 - Path.exists may raise
            yield _NothingThere(self.home)
            return
        with closing(open_reader(self.home, endpoint=self.endpoint, token=self.token)) as reader:
            yield reader


class _NothingThere:
    """Reads a state directory in which nothing was ever recorded. See `RecordReader`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def list_rollouts(self, query: RolloutQuery) -> Iterator[RolloutSummary]:
        """None."""
        return iter(())

    def read_rollouts(self, query: RolloutQuery) -> Iterator[SourcedRollout]:
        """None."""
        return iter(())

    def read_episodes(self, query: RolloutQuery) -> Iterator[Episode]:
        """None."""
        return iter(())

    def stats(self) -> Stats:
        """Of the store as it would be made."""
        counters = dict.fromkeys(COUNTERS, 0)
        return Stats(counters=counters, store=str(self._home.store), schema_version=SCHEMA_VERSION)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Loaded:
    """One rollout as it is stored, and what it becomes."""

    summary: RolloutSummary
    records: Sequence[SourcedRecord]
    episode: Episode

    @property
    def outcome(self) -> str:
        """The episode's; UNKNOWN where nothing but rewards names the rollout, as a mistyped id does."""
        bodies = {each.record.WhichOneof("body") for each in self.records}
        return UNKNOWN if bodies <= _REWARDS_ONLY else self.episode.outcome


def load(reader: Reader, query: RolloutQuery) -> Iterator[Loaded]:
    """Rollouts with their episodes, oldest first, one at a time."""
    for summary, records in reader.read_rollouts(query):
        for episode in assemble(records):
            if episode.rollout_id == summary.rollout_id:
                yield Loaded(summary, records, episode)


def call_views(records: Sequence[SourcedRecord]) -> dict[str, CallView]:
    """The calls among `records`, by id."""
    calls = [decode_call(each) for each in records if each.record.WhichOneof("body") == "call"]
    return {call.call_id: call for call in calls}


def home_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--home`; the command gets it as `home: Home`."""

    @click.option(
        "--home",
        "home_path",
        type=click.Path(file_okay=False),
        metavar="DIRECTORY",
        help="State directory (else LIGHTNING_HOME, else .lightning here).",
    )
    @functools.wraps(command)
    def with_home(*args: Any, home_path: str | None, **options: Any) -> Any:
        return command(*args, home=Home.locate(home_path), **options)

    return with_home


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--home`, `--endpoint` and `--token`; the command gets them as `source: Source`."""

    @home_option
    @click.option(
        "--endpoint",
        envvar="LIGHTNING_ENDPOINT",
        metavar="URL",
        show_envvar=True,
        help="Read from this collector, such as grpc://host:4319.",
    )
    @click.option(
        "--token", envvar="LIGHTNING_TOKEN", show_envvar=True, metavar="TOKEN", help="The collector's token."
    )
    @functools.wraps(command)
    def with_source(*args: Any, home: Home, endpoint: str | None, token: str | None, **options: Any) -> Any:
        return command(*args, source=Source(home, endpoint, token), **options)

    return with_source


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--project`, `--task` and `--run`; the command gets them as `query: RolloutQuery`."""

    @click.option("--project", default="", metavar="NAME", help="Only rollouts of this project.")
    @click.option("--task", default="", metavar="ID", help="Only rollouts of this task.")
    @click.option("--run", default="", metavar="ID", help="Only rollouts of this run.")
    @functools.wraps(command)
    def with_query(*args: Any, project: str, task: str, run: str, **options: Any) -> Any:
        query = RolloutQuery(project=project, task_id=task, run_id=run)
        return command(*args, query=query, **options)

    return with_query


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`; the command gets it as `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)
