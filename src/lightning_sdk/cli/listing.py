"""Rollouts as rows: for `lsdk rollouts`, and for `lsdk show` where an id fits several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from lightning_sdk._proto.read_pb2 import RolloutQuery, RolloutSummary
from lightning_sdk.cli import wording
from lightning_sdk.cli.console import width
from lightning_sdk.cli.reading import Loaded, load
from lightning_sdk.collector.reader import Reader

# Rollouts assembled at a time: bounds what is held and the length of one query.
_BATCH: Final = 50
# From this width on columns stand two spaces apart.
_ROOMY: Final = 100

Row = Mapping[str, Any]


def list_rows(reader: Reader, summaries: Sequence[RolloutSummary]) -> Sequence[Row]:
    """What is known of each rollout, JSON-ready, in the order given."""
    rows: list[Row] = []
    for start in range(0, len(summaries), _BATCH):
        batch = summaries[start : start + _BATCH]
        query = RolloutQuery(rollout_id_prefixes=[summary.rollout_id for summary in batch])
        found = {loaded.summary.rollout_id: loaded for loaded in load(reader, query)}
        rows += [_row(summary, found.get(summary.rollout_id)) for summary in batch]
    return rows


def _row(summary: RolloutSummary, loaded: Loaded | None) -> Row:
    episode = loaded.episode if loaded else None
    return {
        "rollout_id": summary.rollout_id,
        "project": summary.project,
        "run_id": summary.run_id,
        "group_id": summary.group_id,
        "task_id": summary.task_id or None,
        "split": summary.split or None,
        "attempt": summary.attempt,
        "agent": summary.root_agent or None,
        "outcome": loaded.outcome if loaded else summary.outcome,
        "calls": summary.calls,
        "tool_calls": summary.tool_calls,
        "rewards": summary.rewards,
        "return": episode.return_ if episode else None,
        "complete": episode.complete if episode else summary.complete,
        "start_ns": summary.start_ns,
        "end_ns": summary.end_ns or None,
        "revision": summary.revision,
    }


def rollout_table(rows: Sequence[Row]) -> Table:
    """The rows for a person, each id as long as it must be to be told from the others."""
    gap = 2 if width(table=True) >= _ROOMY else 1
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("rollout", no_wrap=True)
    # Only these two may be cut: rich takes room from columns that may wrap, and their cells do not.
    table.add_column("agent", min_width=5)
    table.add_column("task", min_width=5)
    table.add_column("outcome", no_wrap=True)
    for heading in ("calls", "tools", "rewards", "return"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("started", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    now = datetime.now()
    digits = wording.telling_digits([row["rollout_id"] for row in rows])
    for row in rows:
        table.add_row(*_cells(row, now, digits))
    return table


def _cells(row: Row, now: datetime, digits: int) -> Sequence[Text]:
    return [
        Text(wording.short_id(row["rollout_id"], digits), style="bold"),
        *(
            Text(wording.one_line(row[key] or "-"), no_wrap=True, overflow="ellipsis")
            for key in ("agent", "task_id")
        ),
        Text(row["outcome"], style=wording.OUTCOME_STYLES.get(row["outcome"], "")),
        *(Text(f"{row[key]:,}") for key in ("calls", "tool_calls", "rewards")),
        Text(wording.number(row["return"])),
        Text(wording.short_moment(row["start_ns"], now)),
        Text(wording.duration(row["start_ns"], row["end_ns"])),
    ]
