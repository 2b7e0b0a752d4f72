"""Chat completion chunks back to the body that the API would have answered without streaming.

Deltas are merged by choice index, tool calls within them by their own index; text that comes in pieces is
concatenated, and so are lists (log probabilities, token ids). Fields that we do not know follow the same
rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.apis.merging import dict_at, index_of, joined, list_at, merge, objects
from lightning_sdk.mdp.json_text import parse_json


def join_events(events: Sequence[bytes]) -> dict[str, Any]:
    """Merge the data of a stream's events.

    Raises:
        WireError: an event that is neither a chunk nor the end mark.
    """
    body: dict[str, Any] = {"object": "chat.completion"}
    choices: dict[int, _Choice] = {}
    for data in events:
        text = data.strip()
        if not text or text == b"[DONE]":
            continue
        chunk = parse_json(text)
        if not isinstance(chunk, dict):
            raise WireError("an event of a chat stream is not a JSON object")
        for key, value in chunk.items():
            # Usage grows from chunk to chunk on some servers: the last one counts. The rest is said once,
            # though not always in the first chunk: some begin with empty ids and names.
            if key != "choices" and (body.get(key) in (None, "") or (key == "usage" and value is not None)):
                body[key] = value
        for position, piece in enumerate(objects(chunk.get("choices"))):
            index = index_of(piece, position)
            if index not in choices:
                choices[index] = _Choice(index)
            choices[index].add(piece)
    body["choices"] = [choice.finish() for _, choice in sorted(choices.items())]
    return body


class _Choice:
    """One choice while its deltas come in."""

    def __init__(self, index: int) -> None:
        self._fields: dict[str, Any] = {"index": index, "finish_reason": None}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._tool_calls: dict[int, dict[str, Any]] = {}

    def add(self, piece: dict[str, Any]) -> None:
        for key, value in piece.items():
            if key in ("delta", "index"):
                continue
            if key == "logprobs" and isinstance(value, dict):
                merge(dict_at(self._fields, key), value)
            elif key == "token_ids" and isinstance(value, list):
                list_at(self._fields, key).extend(value)
            elif value is not None or key not in self._fields:
                self._fields[key] = value
        delta = piece.get("delta")
        if isinstance(delta, dict):
            self._add_delta(delta)

    def _add_delta(self, delta: dict[str, Any]) -> None:
        rest = dict(delta)
        token_ids = rest.pop("token_ids", None)
        if isinstance(token_ids, list):
            list_at(self._fields, "token_ids").extend(token_ids)
        for position, piece in enumerate(objects(rest.pop("tool_calls", None))):
            tool_call = self._tool_calls.setdefault(index_of(piece, position), {})
            merge(tool_call, {key: value for key, value in piece.items() if key != "index"})
        merge(self._message, rest)

    def finish(self) -> dict[str, Any]:
        message = joined(self._message)
        if self._tool_calls:
            message["tool_calls"] = [joined(tool_call) for _, tool_call in sorted(self._tool_calls.items())]
        return {**joined(self._fields), "message": message}
