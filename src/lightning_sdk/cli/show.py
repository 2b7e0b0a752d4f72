"""`lsdk show`: one rollout."""

from __future__ import annotations

from typing import Final

import click

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli.console import print_json, show
from lightning_sdk.cli.empty import nothing_found
from lightning_sdk.cli.episode_json import episode_record
from lightning_sdk.cli.episode_tree import render_episode
from lightning_sdk.cli.example import example
from lightning_sdk.cli.listing import list_rows, rollout_table
from lightning_sdk.cli.reading import Loaded, Source, call_views, json_option, load, source_options
from lightning_sdk.collector.reader import Reader

# How many of the rollouts that fit the beginning of an id are listed.
_CANDIDATES: Final = 10


@click.command(
    epilog=example(
        "lsdk show --last", "lsdk show 3f2a --full", "lsdk show --last --json | jq '.transitions[].reward'"
    )
)
@click.argument("rollout", required=False)
@click.option("--last", is_flag=True, help="The newest rollout.")
@click.option("--full", is_flag=True, help="Whole messages, arguments, results and metadata.")
@source_options
@json_option
def command(source: Source, rollout: str | None, last: bool, full: bool, as_json: bool) -> None:
    """Show one rollout as a tree.

    ROLLOUT is its id or the beginning of it, with or without "ro_", as `lsdk rollouts` lists it. The tree has
    the agents with their calls, tools and rewards, in the order in which one caused the other.
    """
    if (rollout is None) == (not last):
        raise click.UsageError("name a rollout (`lsdk rollouts` lists them) or say --last, not both")
    with source.reader() as reader:
        loaded = _load_one(
            reader, _newest(source, reader) if rollout is None else _unique(source, reader, rollout)
        )
    if as_json:
        print_json(episode_record(loaded.episode))
    else:
        calls = call_views(loaded.records)
        show(render_episode(loaded.episode, calls, full=full, outcome=loaded.outcome))


def _newest(source: Source, reader: Reader) -> str:
    for summary in reader.list_rollouts(RolloutQuery(limit=1)):
        return summary.rollout_id
    raise click.UsageError(nothing_found(source, reader))


def _unique(source: Source, reader: Reader, beginning: str) -> str:
    """The only rollout whose id begins so. Where there are several, they are listed on stderr."""
    # The reader takes a beginning with or without "ro_".
    found = list(reader.list_rollouts(RolloutQuery(rollout_id_prefixes=[beginning])))
    if any(summary.rollout_id == beginning for summary in found):
        return beginning
    if not found:
        if next(iter(reader.list_rollouts(RolloutQuery(limit=1))), None) is None:
            raise click.UsageError(nothing_found(source, reader))
        raise click.UsageError(f"no rollout's id begins with {beginning!r}: `lsdk rollouts` lists them")
    if len(found) > 1:
        shown = found[:_CANDIDATES]
        show(rollout_table(list_rows(reader, shown)), table=True, error=True)
        which = "these" if len(shown) == len(found) else f"the newest {len(shown)} are these"
        raise click.UsageError(
            f"{len(found)} rollouts begin with {beginning!r}, {which}: give more of the id"
        )
    return found[0].rollout_id


def _load_one(reader: Reader, rollout_id: str) -> Loaded:
    for loaded in load(reader, RolloutQuery(rollout_id_prefixes=[rollout_id])):
        if loaded.summary.rollout_id == rollout_id:
            return loaded
    raise click.UsageError(f"the rollout {rollout_id} has no readable records")
