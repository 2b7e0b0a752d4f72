"""JSON from outside, read so that nothing in it can hurt later: no NaN, no infinity, no deep nesting."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from lightning_sdk.errors import WireError

# Less than any JSON writer refuses (orjson: 254), so that what was read can be written again.
MAX_DEPTH = 200


def parse_json(data: bytes) -> Any:
    """The value that UTF-8 JSON text says.

    Raises:
        WireError: not JSON, not finite, or nested deeper than `MAX_DEPTH`.
    """
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"{len(data)} bytes are not JSON that can be read: {error}") from None
    # Text with few brackets cannot be deep: most is not looked at any closer.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _too_deep(data):
        raise WireError(f"{len(data)} bytes of JSON are nested deeper than {MAX_DEPTH}")
    return value


def parse_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object that `data` says; None where it says none."""
    if not data:
        return None
    try:
        value = parse_json(data)
    except WireError:
        return None
    return value if isinstance(value, dict) else None


def _too_deep(data: bytes) -> bool:
    """Whether valid JSON is nested deeper than `MAX_DEPTH`. On bytes: to walk the values takes longer."""
    without_escapes = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    # Of brackets and quotes, every second part between quotes is outside of strings.
    brackets = b"".join(without_escapes.translate(_ONE_KIND, delete=_NO_MARK).split(b'"')[::2])
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond a double")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_MARK = bytes(set(range(256)) - set(b'{}[]"'))
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)
