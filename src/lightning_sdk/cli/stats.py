"""`lsdk stats`: sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from lightning_sdk._proto.read_pb2 import RolloutQuery, Stats
from lightning_sdk.cli import wording
from lightning_sdk.cli.client_counters import CLIENT_PREFIX, OUTSIDE, client_counters, outside_rollouts
from lightning_sdk.cli.console import counted, notice, print_json, show
from lightning_sdk.cli.empty import nothing_found
from lightning_sdk.cli.example import example
from lightning_sdk.cli.reading import Source, call_views, filter_options, json_option, load, source_options
from lightning_sdk.cli.spool_state import SpoolState, inspect_spool
from lightning_sdk.cli.summing import Sums

# Of runs with the same fault, so many are named.
_NAMED_RUNS: Final = 3


@click.command(
    epilog=example("lsdk stats --project search-agent", "lsdk stats --json | jq .transitions.drop_reasons")
)
@source_options
@filter_options
@json_option
def command(source: Source, query: RolloutQuery, as_json: bool) -> None:
    """Sum up what was recorded, and what of it can be used."""
    sums = Sums()
    with source.reader() as reader:
        for loaded in counted(load(reader, query), "reading rollouts"):
            sums.add(loaded.episode, call_views(loaded.records), loaded.outcome)
        store = reader.stats()
        if not sums.outcomes:
            notice(nothing_found(source, reader, query))
    # With an endpoint the spool here is another machine's business.
    spool = None if source.endpoint else inspect_spool(source.home.spool)
    if as_json:
        print_json({**sums.to_json(), "spool": _spool_json(spool), "store": _store_json(store)})
        return
    show(*_report(sums, spool, store))


def _spool_json(spool: SpoolState | None) -> dict[str, object] | None:
    if spool is None:
        return None
    return {
        "segments": dict(spool.segments),
        "records": dict(spool.records),
        "damaged": dict(spool.damaged),
    }


def _store_json(store: Stats) -> dict[str, object]:
    return {"store": store.store, "schema_version": store.schema_version, "counters": dict(store.counters)}


def _report(sums: Sums, spool: SpoolState | None, store: Stats) -> Iterator[RenderableType]:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(sums):
        table.add_row(name, Text(text))
    if spool is not None:
        table.add_row("spool", Text(_spool_line(spool)))
    table.add_row("store", Text(wording.one_line(store.store)))
    table.add_row("records", Text(_counters(store.counters)))
    clients = {name: many for name, many in client_counters(store).items() if name not in OUTSIDE}
    if clients:
        table.add_row("clients", Text(wording.tally(clients)))
    yield table
    for run_ids, complaint in sums.merged_complaints():
        yield Text(f"{_runs(run_ids)}: {complaint}", style="yellow")
    for sentence in outside_rollouts(store) if sums.outcomes else ():
        yield Text(sentence, style="yellow")
    if spool is not None:
        for name, damage in spool.damaged.items():
            yield Text(wording.one_line(f"damaged segment {name}: {damage}"), style="red")


def _runs(run_ids: Sequence[str]) -> str:
    names = ", ".join(wording.one_line(run_id) for run_id in run_ids[:_NAMED_RUNS])
    if len(run_ids) == 1:
        return f"run {names}"
    more = len(run_ids) - _NAMED_RUNS
    return f"{len(run_ids):,} runs ({names}{f' and {more:,} more' if more > 0 else ''})"


def _lines(sums: Sums) -> list[tuple[str, str]]:
    rollouts = sum(sums.outcomes.values())
    incomplete = f"; {sums.incomplete:,} incomplete" if sums.incomplete else ""
    transitions = sum(sums.fidelity.values())
    lines = [
        ("rollouts", _of(rollouts, sums.outcomes) + incomplete),
        ("transitions", _of(transitions, sums.fidelity)),
        ("usable", _usable_line(sums)),
        ("drop reasons", wording.tally(sums.dropped) or "-"),
        ("models", _of(sum(sums.models.values()), sums.models)),
        ("agents", _of(sum(sums.agents.values()), sums.agents)),
        ("tools", _of(sum(sums.tools.values()), sums.tools)),
        ("tokens", _token_line(sums)),
        ("rewards", _reward_line(sums)),
    ]
    if sums.breaks:
        lines.insert(4, ("broken chains", _of(sum(sums.breaks.values()), sums.breaks)))
    if sums.no_decision:
        lines.insert(4, ("other calls", _of(sum(sums.no_decision.values()), sums.no_decision)))
    return lines


def _of(total: int, parts: Mapping[str, int]) -> str:
    return f"{total:,}" + (f": {wording.tally(parts)}" if parts else "")


def _usable_line(sums: Sums) -> str:
    off = f" ({sums.off_distribution:,} of them off_distribution)" if sums.off_distribution else ""
    return f"{sums.usable:,} by tokens{off}; {sums.text_only:,} more as text"


def _token_line(sums: Sums) -> str:
    line = f"{sums.prompt_tokens:,} → {sums.response_tokens:,}"
    if sums.calls_without_usage:
        line += f"; unknown for {wording.count(sums.calls_without_usage, 'call')}"
    return line


def _reward_line(sums: Sums) -> str:
    if not sums.rewards:
        return "0"
    line = (
        f"{sums.rewards:,} in {wording.count(len(sums.returns), 'rollout')}; "
        f"mean return {wording.number(sums.mean_return())}"
    )
    return line + (f"; {sums.unbound_rewards:,} bound to no call" if sums.unbound_rewards else "")


def _spool_line(spool: SpoolState) -> str:
    if not spool.segments and not spool.damaged:
        return "empty"
    parts = []
    for destination, segments in sorted(spool.segments.items()):
        records = wording.count(spool.records.get(destination, 0), "record")
        owed = "stored already, kept by their living writers"
        if destination:
            owed = f"wait for {wording.one_line(destination)}"
        parts.append(f"{records} in {wording.count(segments, 'segment')} {owed}")
    if spool.damaged:
        parts.append(f"{wording.count(len(spool.damaged), 'damaged segment')}")
    return "; ".join(parts)


def _counters(counters: Mapping[str, int]) -> str:
    """The counters of the store: those that say something, and those whose zero does."""
    telling = ("duplicates", "integrity_errors", "tombstones")
    other = sorted(name for name, value in counters.items() if value and name not in telling)
    names = [*telling, *(name for name in other if not name.startswith(CLIENT_PREFIX))]
    rest = (f"{wording.one_line(name)} {counters.get(name, 0):,}" for name in names if name != "records")
    return ", ".join([f"{counters.get('records', 0):,}", *rest])
