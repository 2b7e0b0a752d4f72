"""`lsdk export`: stored rollouts into a backend."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli import wording
from lightning_sdk.cli.backends import load_backend
from lightning_sdk.cli.console import counted, print_json, remark, show
from lightning_sdk.cli.empty import nothing_found
from lightning_sdk.cli.example import example
from lightning_sdk.cli.grouping import Snapshot
from lightning_sdk.cli.reading import Source, filter_options, json_option, source_options
from lightning_sdk.errors import ConfigError, PluginError
from lightning_sdk.mdp import TEXT_ONLY
from lightning_sdk.plugins import BACKENDS, Backend, Report, find

# How a backend calls its counts of transitions that were written and cannot be used as they are.
_REASONS = "drop_reason."
# Options of a backend that have a name of their own on the command line.
_NAMED = {"format": "--format", "out": "--out"}


@click.command(
    epilog=example(
        "lsdk export --out train.jsonl",
        "lsdk export --out search.jsonl --format transitions --project search-agent",
    )
)
@click.option(
    "--backend",
    "name",
    default="jsonl",
    show_default=True,
    metavar="NAME",
    help="Which one; `lsdk backends` lists them.",
)
@click.option("--format", "format_", metavar="NAME", help="What the backend writes, such as transitions.")
@click.option("--out", type=click.Path(path_type=Path), metavar="PATH", help="Where the backend writes.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another option of the backend; the value is JSON, or else text. Repeatable.",
)
@source_options
@filter_options
@json_option
def command(
    source: Source,
    query: RolloutQuery,
    name: str,
    format_: str | None,
    out: Path | None,
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Write a dataset with a backend.

    Rollouts are read oldest first and given to the backend in groups: those of one task in one run.
    """
    if str(out) == "-":
        raise click.UsageError(
            "--out - would be a file of that name: a backend writes files, so name one (/dev/stdout is none)"
        )
    options = {"format": format_, "out": out, **_parse(settings)}
    backend = _make(name, {key: value for key, value in options.items() if value is not None})
    with source.reader() as reader:
        snapshot = Snapshot(reader, query)
        if not snapshot.rollouts:
            raise click.UsageError(f"there is nothing to export: {nothing_found(source, reader, query)}")
        report = backend.consume(
            snapshot.groups(lambda rollouts: counted(rollouts, "exporting", snapshot.rollouts))
        )
    if as_json:
        print_json(_to_json(report, snapshot))
    else:
        _print(report, snapshot)


def _parse(settings: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise click.UsageError(f"--set takes KEY=VALUE, not {setting!r}")
        if key in _NAMED:
            raise click.UsageError(f"say {_NAMED[key]} {value} instead of --set {setting}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def _make(name: str, options: Mapping[str, Any]) -> Backend:
    """The backend called `name`, with its options; every problem is one sentence."""
    backend = load_backend(find(BACKENDS, name))
    problem = backend.missing()
    if problem is not None:
        raise PluginError(f"backend {name!r} is not usable: {problem}")
    if backend.mode != "offline":
        raise ConfigError(
            f"backend {name!r} is {backend.mode}: it cannot take stored rollouts, only its own policy's"
        )
    _check_options(name, backend, options)
    return backend(**options)


def _check_options(name: str, backend: type, options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(backend).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    taken = [parameter.name for parameter in parameters]
    for option in options:
        if option not in taken:
            known = ", ".join(taken) or "none"
            raise ConfigError(f"backend {name!r} has no option {option!r}; its options are {known}")
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in options:
            how = _NAMED.get(parameter.name, f"--set {parameter.name}=")
            raise ConfigError(f"backend {name!r} needs the option {parameter.name!r}: give it with {how}")


def _to_json(report: Report, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "rollouts": snapshot.rollouts,
        "groups": snapshot.handed_on,
        "outputs": {name: str(path) for name, path in report.outputs.items()},
        "metrics": dict(report.metrics),
        "dropped": dict(report.dropped),
    }


def _usable(metrics: Mapping[str, float]) -> str | None:
    """How many of the transitions that were written can be used, and as what; None where that is not said."""
    if "transitions" not in metrics:
        return None
    reasons = {
        name.removeprefix(_REASONS): round(many)
        for name, many in metrics.items()
        if name.startswith(_REASONS)
    }
    text_only = sum(many for reason, many in reasons.items() if reason in TEXT_ONLY)
    by_tokens = round(metrics["transitions"]) - sum(reasons.values())
    unusable = sum(reasons.values()) - text_only
    return f"{by_tokens:,} by tokens; {text_only:,} more as text; {unusable:,} not at all"


def _rows(metrics: Mapping[str, float]) -> dict[str, str]:
    """Metrics as they are shown; those called "drop_reason.error", "drop_reason.cancelled" share a row."""
    rows: dict[str, list[str]] = {}
    for name, value in metrics.items():
        family, _, member = name.partition(".")
        number = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"
        said = f"{wording.one_line(member)} {number}" if member else number
        rows.setdefault(f"{family.replace('_', ' ')}s" if member else name, []).append(said)
    return {name: ", ".join(parts) for name, parts in rows.items()}


def _print(report: Report, snapshot: Snapshot) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, path in report.outputs.items():
        table.add_row(wording.one_line(name), Text(wording.one_line(str(path)), style="cyan"))
    facts = {"rollouts": snapshot.rollouts, "groups": snapshot.handed_on}
    for name, text in _rows({**facts, **report.metrics}).items():
        table.add_row(wording.one_line(name), Text(text))
        if name == "transitions" and (usable := _usable(report.metrics)):
            table.add_row("usable", Text(usable))
    if report.dropped:
        table.add_row("dropped", Text(wording.tally(report.dropped), style="yellow"))
    show(table)
    if report.dropped or any(name.startswith(_REASONS) for name in report.metrics):
        remark("`lsdk stats` says which runs that concerns, `lsdk show ROLLOUT` which calls.")
