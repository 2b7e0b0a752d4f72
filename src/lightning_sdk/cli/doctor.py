"""`lsdk doctor`: whether this installation works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby

import click
from rich.table import Table
from rich.text import Text

from lightning_sdk.cli import checks, wording
from lightning_sdk.cli.checks import Check
from lightning_sdk.cli.console import print_json, show
from lightning_sdk.cli.example import example
from lightning_sdk.cli.reading import Source, json_option, source_options
from lightning_sdk.cli.selftest import self_test

_MARKS = {
    "ok": ("✓", "green"),
    "absent": ("·", "dim"),
    "warning": ("!", "yellow"),
    "broken": ("✗", "bold red"),
}


@click.command(epilog=example("lsdk doctor", "lsdk doctor --json | jq '.[] | select(.state == \"broken\")'"))
@source_options
@json_option
@click.pass_context
def command(context: click.Context, source: Source, as_json: bool) -> None:
    """Check this installation and try a recording.

    Looks at versions, extras, integrations, spool, store and collector, at what went wrong inside clients, and
    records one call of the openai package against a server of its own on this machine. The exit code is 1 when
    something is broken.
    """
    found = list(_examine(source))
    if as_json:
        print_json([asdict(check) for check in found])
    else:
        show(_table(found))
    if any(check.state == "broken" for check in found):
        context.exit(1)


def _examine(source: Source) -> Iterator[Check]:
    yield from checks.versions()
    yield from checks.other_product()
    yield from checks.extras()
    yield from checks.integrations()
    yield from checks.state(source)
    yield self_test()
    yield from checks.this_process()


def _table(found: Sequence[Check]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for section, group in groupby(found, key=lambda check: check.section):
        table.add_row("", Text(section, style="bold"), "")
        for check in group:
            mark, style = _MARKS[check.state]
            table.add_row(
                Text(mark, style=style),
                Text(f" {wording.one_line(check.name)}"),
                Text(wording.one_line(check.detail), style=style if check.state == "broken" else ""),
            )
    return table
