"""Scopes and tool executions from their records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.calls import error_text
from lightning_sdk.mdp.episode import ScopeSpan, ToolEvent
from lightning_sdk.mdp.json_text import parse_json
from lightning_sdk.records import OUTCOME_NAMES, SourcedRecord


def decode_tool(record: SourcedRecord) -> ToolEvent:
    """Read a tool record. Arguments or a result that are not JSON come as text."""
    head, tool = record.record, record.record.tool_call
    return ToolEvent(
        tool_call_id=tool.tool_call_id,
        name=tool.name,
        agent=tool.agent or None,
        scope_id=head.scope_id or None,
        order=head.order,
        start_ns=head.start_ns,
        end_ns=head.end_ns,
        arguments=_json_or_text(tool.arguments),
        result=_json_or_text(tool.result),
        outcome=OUTCOME_NAMES.get(tool.outcome, "error"),
        error=error_text(tool.error) if tool.HasField("error") else None,
    )


def decode_scopes(records: Iterable[SourcedRecord]) -> list[ScopeSpan]:
    """Read all scopes, in the order in which they start in `records`; records of other kinds are passed over.

    The end of a scope whose start was lost makes no scope.
    """
    starts: dict[str, SourcedRecord] = {}
    ends: dict[str, SourcedRecord] = {}
    for item in records:
        if item.record.HasField("scope_start"):
            starts.setdefault(item.record.scope_id, item)
        elif item.record.HasField("scope_end"):
            ends[item.record.scope_id] = item
    return [_span(start, ends.get(scope_id)) for scope_id, start in starts.items()]


def _span(start: SourcedRecord, end: SourcedRecord | None) -> ScopeSpan:
    head = start.record
    finish = None if end is None else end.record
    return ScopeSpan(
        scope_id=head.scope_id,
        parent_scope_id=head.scope_start.parent_scope_id or None,
        agent=head.scope_start.agent,
        order=head.order,
        start_ns=head.start_ns,
        end_ns=None if finish is None else finish.end_ns,
        outcome=None if finish is None else OUTCOME_NAMES.get(finish.scope_end.outcome, "error"),
        error=error_text(finish.scope_end.error)
        if finish is not None and finish.scope_end.HasField("error")
        else None,
    )


def _json_or_text(data: bytes) -> Any:
    if not data:
        return None
    try:
        return parse_json(data)
    except WireError:
        return data.decode("utf-8", errors="replace")
