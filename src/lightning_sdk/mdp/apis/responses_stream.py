"""Events of the Responses API back to the response that the API would have answered without streaming.

Its last event has the whole response. Of a stream that was cut, the items are put together from what came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.json_text import parse_json

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_BEGINNINGS = frozenset({"response.created", "response.in_progress", "response.queued"})
# Deltas of an item's own text, and where it goes.
_ITEM_DELTAS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
# Deltas of a part of an item: the list of parts, the key of the part's index, its type and where its text goes.
_PART_DELTAS = {
    "response.output_text.delta": ("content", "content_index", "output_text", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "summary_text", "text"),
}


def join_events(events: Sequence[bytes]) -> dict[str, Any]:
    """Merge the data of a stream's events.

    Raises:
        WireError: an event that is not one of this API.
    """
    body: dict[str, Any] = {"object": "response", "output": []}
    items: dict[int, _Item] = {}
    for data in events:
        text = data.strip()
        if not text or text == b"[DONE]":
            continue
        event = parse_json(text)
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            raise WireError("an event of a response's stream is not a JSON object with a type")
        if kind in _ENDS or kind in _BEGINNINGS:
            told = event.get("response")
            if not isinstance(told, dict):
                raise WireError(f"the event {kind} holds no response")
            body = told
        else:
            _add(items, kind, event)
    # Some servers leave the items out of the last event.
    if not body.get("output"):
        body = {**body, "output": [item.joined() for _, item in sorted(items.items())]}
    return body


def _add(items: dict[int, _Item], kind: str, event: dict[str, Any]) -> None:
    index = event.get("output_index")
    if type(index) is not int:
        return
    item = items.setdefault(index, _Item())
    if kind in ("response.output_item.added", "response.output_item.done"):
        if not isinstance(event.get("item"), dict):
            raise WireError(f"the event {kind} holds no item")
        item.told = event["item"]
        item.done = kind.endswith("done")
    elif kind in _ITEM_DELTAS:
        item.add((_ITEM_DELTAS[kind],), event.get("delta"))
    elif kind in _PART_DELTAS:
        parts, position, type_, key = _PART_DELTAS[kind]
        at = event.get(position)
        item.add((parts, at if type(at) is int else 0, type_, key), event.get("delta"))


class _Item:
    """One item of the output, while it grows."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.done = False
        self._pieces: dict[tuple[Any, ...], list[str]] = {}

    def add(self, place: tuple[Any, ...], delta: Any) -> None:
        """More text of a member, or of a part."""
        if not isinstance(delta, str):
            raise WireError("a delta of a response's stream is no text")
        self._pieces.setdefault(place, []).append(delta)

    def joined(self) -> dict[str, Any]:
        """The item as far as it came."""
        if self.done:
            return self.told
        item = dict(self.told)
        parts: dict[str, dict[int, dict[str, Any]]] = {}
        for place, pieces in self._pieces.items():
            text = "".join(pieces)
            if len(place) == 1:
                item[place[0]] = text
            else:
                name, at, type_, key = place
                parts.setdefault(name, {})[at] = {"type": type_, key: text}
        for name, by_index in parts.items():
            item[name] = [part for _, part in sorted(by_index.items())]
        return item
