"""`lsdk backends`: what can consume episodes here."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import click
from rich.table import Table
from rich.text import Text

from lightning_sdk.cli import wording
from lightning_sdk.cli.console import print_json, remark, show
from lightning_sdk.cli.example import example
from lightning_sdk.cli.reading import json_option
from lightning_sdk.errors import PluginError
from lightning_sdk.plugins import BACKENDS, Backend, Plugin, discover


@dataclass(frozen=True)
class _Row:
    name: str
    distribution: str
    mode: str | None
    fidelity: str | None
    summary: str | None
    usable: bool
    # The missing piece, or why it does not load.
    problem: str | None


@click.command(
    epilog=example("lsdk backends", "lsdk backends --json | jq -r '.[] | select(.usable) | .name'")
)
@json_option
def command(as_json: bool) -> None:
    """List the installed backends.

    Each one with what it takes ("offline": what is stored, "online": rollouts of the policy that it trains;
    "engine": only calls whose token ids the engine told) and whether it is usable, or what is missing.
    """
    rows = [_examine(plugin) for plugin in discover(BACKENDS)]
    if as_json:
        print_json([asdict(row) for row in rows])
    elif rows:
        show(_table(rows), table=True)
    else:
        remark("No backend is installed.")


def load_backend(plugin: Plugin) -> type[Backend]:
    """Import a backend's class.

    Raises:
        PluginError: it does not load, or is no backend.
    """
    loaded = plugin.load()
    lacking = [
        part for part in ("mode", "fidelity", "summary", "missing", "consume") if not hasattr(loaded, part)
    ]
    if not isinstance(loaded, type) or lacking:
        what = f"it has no {', '.join(lacking)}" if lacking else "it is no class"
        raise PluginError(
            f"{plugin.name!r} ({plugin.value}, from {plugin.distribution}) is no backend: {what}"
        )
    return loaded


def _examine(plugin: Plugin) -> _Row:
    try:
        backend = load_backend(plugin)
        problem = backend.missing()
    except Exception as error:  # a stranger's code: one broken backend must not hide the others
        return _Row(plugin.name, plugin.distribution, None, None, None, False, str(error))
    return _Row(
        plugin.name,
        plugin.distribution,
        backend.mode,
        backend.fidelity,
        backend.summary,
        problem is None,
        problem,
    )


def _table(rows: list[_Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in ("backend", "from", "mode", "fidelity"):
        table.add_column(heading, no_wrap=True)
    table.add_column("state", overflow="fold")
    for row in rows:
        state = (
            Text("usable", style="green")
            if row.usable
            else Text(wording.one_line(row.problem or ""), style="yellow")
        )
        if row.usable and row.summary:
            state.append(f": {wording.one_line(row.summary)}", style="default")
        table.add_row(
            Text(row.name, style="bold"),
            Text(row.distribution),
            Text(row.mode or "-"),
            Text(row.fidelity or "-"),
            state,
        )
    return table
