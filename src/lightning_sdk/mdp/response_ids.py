"""The id that a model's server gave to a response, read off the wire without decoding all of it.

Some APIs have it in the response itself, which the first event of a stream holds as a member.
"""

from __future__ import annotations

import re
from typing import Final

from lightning_sdk.errors import WireError
from lightning_sdk.ids import unfit
from lightning_sdk.mdp.json_text import parse_json
from lightning_sdk.records import Call

# Nearly every server writes the id first, and plainly: then nothing else has to be read.
_ID_FIRST: Final = re.compile(rb'\s*\{\s*"id"\s*:\s*"([^"\\\x00-\x1f]+)"')
# Some servers begin a stream with events that have no id yet.
_MAX_EVENTS: Final = 16
# Of what does not begin with its id, so much is decoded a call at the most.
_MAX_DECODED_BYTES: Final = 1 << 20
# First events of streams, and their member that has the id.
_HOLDERS: Final = {"response.created": "response", "message_start": "message"}


def response_id(call: Call) -> str | None:
    """The top-level "id" of the response, or of the first event that has one, or begins a response that has.

    Returns:
        None where there is none that an index can hold, or it is hidden in more than a megabyte.
    """
    left = _MAX_DECODED_BYTES
    for data in call.events[:_MAX_EVENTS] if call.streamed and call.events else (call.response,):
        found = _ID_FIRST.match(data)
        if found is not None:
            text = found[1].decode("utf-8", errors="replace")
        else:
            left -= len(data)
            if left < 0:
                return None
            text = _decoded_id(data)
        if text:
            return text if unfit(text) is None else None
    return None


def _decoded_id(data: bytes) -> str:
    if b'"id"' not in data:
        return ""
    try:
        value = parse_json(data)
    except WireError:
        return ""
    if not isinstance(value, dict):
        return ""
    kind = value.get("type")
    holder = value.get(_HOLDERS[kind]) if isinstance(kind, str) and kind in _HOLDERS else value
    told = holder.get("id") if isinstance(holder, dict) else None
    return told if isinstance(told, str) else ""
