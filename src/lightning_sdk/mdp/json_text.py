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
    # Text with few brackets cannot be deep: most is not walked at all.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise WireError(f"{len(data)} bytes of JSON are nested deeper than {MAX_DEPTH}")
    return value


def parse_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object that `data` says; None where it says none."""
    try:
        value = parse_json(data)
    except WireError:
        return None
    return value if isinstance(value, dict) else None


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                below.extend(child for child in node.values() if isinstance(child, (dict, list)))
            elif isinstance(node, list):
                below.extend(child for child in node if isinstance(child, (dict, list)))
        if not below:
            return False
        level = below
    return True


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond a double")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)
