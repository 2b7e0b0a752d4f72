"""`lsdk show`: one rollout."""

from __future__ import annotations

import click

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli import wording
from lightning_sdk.cli.console import print_json, show
from lightning_sdk.cli.episode_json import episode_record
from lightning_sdk.cli.episode_tree import render_episode
from lightning_sdk.cli.example import example
from lightning_sdk.cli.reading import Loaded, Source, call_views, json_option, load, source_options
from lightning_sdk.collector.reader import Reader


@click.command(
    epilog=example(
        "lsdk show --last", "lsdk show 3f2a --full", "lsdk show 3f2a --json | jq '.transitions[].reward'"
    )
)
@click.argument("rollout", required=False)
@click.option("--last", is_flag=True, help="The newest rollout.")
@click.option("--full", is_flag=True, help="Whole messages, arguments and results.")
@source_options
@json_option
def command(source: Source, rollout: str | None, last: bool, full: bool, as_json: bool) -> None:
    """Show one rollout as a tree.

    ROLLOUT is its id or the beginning of it, with or without "ro_". The tree has the agents with their calls,
    tools and rewards, in the order in which one caused the other.
    """
    if (rollout is None) == (not last):
        raise click.UsageError("name a rollout (`lsdk rollouts` lists them) or say --last, not both")
    with source.reader() as reader:
        loaded = _load_one(reader, _newest(reader) if rollout is None else _unique(reader, rollout))
    if as_json:
        print_json(episode_record(loaded.episode))
    else:
        show(render_episode(loaded.episode, call_views(loaded.records), full=full))


def _newest(reader: Reader) -> str:
    for summary in reader.list_rollouts(RolloutQuery(limit=1)):
        return summary.rollout_id
    raise click.UsageError("there is no rollout yet: run a program that uses @trace_agent")


def _unique(reader: Reader, beginning: str) -> str:
    query = RolloutQuery(rollout_id_prefixes=[beginning, f"ro_{beginning}"])
    found = [summary.rollout_id for summary in reader.list_rollouts(query)]
    if beginning in found:
        return beginning
    if not found:
        raise click.UsageError(f"no rollout's id begins with {beginning!r}: `lsdk rollouts` lists them")
    if len(found) > 1:
        some = ", ".join(wording.one_line(each)[:16] for each in found[:5])
        raise click.UsageError(
            f"{len(found)} rollouts begin with {beginning!r} ({some}): give more of the id"
        )
    return found[0]


def _load_one(reader: Reader, rollout_id: str) -> Loaded:
    final: Loaded | None = None
    for loaded in load(reader, RolloutQuery(rollout_id_prefixes=[rollout_id])):
        if loaded.summary.rollout_id == rollout_id:
            final = loaded
    if final is None:
        raise click.UsageError(f"the rollout {rollout_id} has no readable records")
    return final
