"""`lsdk show`: one rollout."""

from __future__ import annotations

import click

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli.console import print_json, show
from lightning_sdk.cli.empty import nothing_found
from lightning_sdk.cli.episode_json import episode_record
from lightning_sdk.cli.episode_tree import render_episode
from lightning_sdk.cli.example import example
from lightning_sdk.cli.finding import load_rollout, unique_rollout
from lightning_sdk.cli.reading import Source, call_views, json_option, source_options
from lightning_sdk.collector.reader import Reader


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
        rollout_id = _newest(source, reader) if rollout is None else unique_rollout(source, reader, rollout)
        loaded = load_rollout(reader, rollout_id)
    if as_json:
        print_json(episode_record(loaded.episode))
    else:
        calls = call_views(loaded.records)
        show(render_episode(loaded.episode, calls, full=full, outcome=loaded.outcome))


def _newest(source: Source, reader: Reader) -> str:
    for summary in reader.list_rollouts(RolloutQuery(limit=1)):
        return summary.rollout_id
    raise click.UsageError(nothing_found(source, reader))
