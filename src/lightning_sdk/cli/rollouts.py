"""`lsdk rollouts`: what there is."""

from __future__ import annotations

import click

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli.console import notice, print_json, remark, show
from lightning_sdk.cli.empty import nothing_found
from lightning_sdk.cli.example import example
from lightning_sdk.cli.listing import list_rows, rollout_table
from lightning_sdk.cli.reading import Source, filter_options, json_option, source_options


@click.command(
    epilog=example(
        "lsdk rollouts --task math-17 --limit 5", "lsdk rollouts --json | jq '.[] | select(.return == null)'"
    )
)
@source_options
@filter_options
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many; 0 for all."
)
@json_option
def command(source: Source, query: RolloutQuery, limit: int, as_json: bool) -> None:
    """List rollouts, newest first.

    The first column is what `lsdk show` takes.
    """
    # One more than shown tells whether there are more.
    query.limit = limit + 1 if limit else 0
    with source.reader() as reader:
        summaries = list(reader.list_rollouts(query))
        shown = summaries[:limit] if limit else summaries
        rows = list_rows(reader, shown)
        if not rows:
            notice(nothing_found(source, reader, query))
    if as_json:
        print_json(rows)
        return
    if not rows:
        return
    show(rollout_table(rows), table=True)
    if len(summaries) > len(shown):
        remark(f"The newest {len(shown)}; --limit 0 shows all.")
