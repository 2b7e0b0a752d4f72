"""Events of the Messages API back to the message that the API would have answered without streaming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.json_text import parse_json

# Types of deltas, and the member of the block and of the delta that has the text.
_TEXT_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_JSON_DELTA = "input_json_delta"


def join_events(events: Sequence[bytes]) -> dict[str, Any]:
    """Merge the data of a stream's events.

    Raises:
        WireError: an event that is not one of this API.
    """
    body: dict[str, Any] = {"type": "message", "role": "assistant"}
    blocks: dict[int, _Block] = {}
    for data in events:
        if not data.strip():
            continue
        event = parse_json(data)
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            raise WireError("an event of a message's stream is not a JSON object with a type")
        if kind == "message_start":
            body = dict(_object(event, "message"))
        elif kind == "content_block_start":
            blocks[_index(event)] = _Block(_object(event, "content_block"))
        elif kind == "content_block_delta":
            blocks.setdefault(_index(event), _Block({})).add(_object(event, "delta"))
        elif kind == "message_delta":
            body.update(_object(event, "delta"))
            # It tells anew what has grown.
            usage = event.get("usage")
            if isinstance(usage, dict):
                before = body.get("usage")
                grown = {key: value for key, value in usage.items() if value is not None}
                body["usage"] = {**(before if isinstance(before, dict) else {}), **grown}
    body["content"] = [block.joined() for _, block in sorted(blocks.items())]
    return body


class _Block:
    """One block, while it grows."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        self._pieces: dict[str, list[str]] = {}

    def add(self, delta: dict[str, Any]) -> None:
        """More of it."""
        kind = delta.get("type")
        member = "partial_json" if kind == _JSON_DELTA else _TEXT_DELTAS.get(str(kind))
        if member is None:
            return
        if not isinstance(delta.get(member), str):
            raise WireError(f"a {kind} of a message's stream holds no text")
        self._pieces.setdefault(member, []).append(delta[member])

    def joined(self) -> dict[str, Any]:
        """The block as far as it came."""
        block = dict(self._told)
        for member, pieces in self._pieces.items():
            text = "".join(pieces)
            if member != "partial_json":
                before = block.get(member)
                block[member] = (before if isinstance(before, str) else "") + text
            elif text:
                block["input"] = _parsed_or_text(text)
        return block


def _parsed_or_text(text: str) -> Any:
    try:
        return parse_json(text.encode())
    except WireError:  # cut off in the middle
        return text


def _object(event: dict[str, Any], key: str) -> dict[str, Any]:
    value = event.get(key)
    if not isinstance(value, dict):
        raise WireError(f"the event {event['type']} holds no {key}")
    return value


def _index(event: dict[str, Any]) -> int:
    index = event.get("index")
    if type(index) is not int:
        raise WireError(f"the event {event['type']} has no index")
    return index
