"""JSON from outside, read so that nothing in it can hurt later: no NaN, no infinity, no deep nesting.

orjson reads it where it is installed (the `[server]` extra), several times as fast; what it refuses is left to the
standard library, so that both installs read the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NoReturn

from lightning_sdk.errors import WireError

_fast_loads: Callable[[bytes], Any] | None
try:
    from orjson import loads as _fast_loads
except ImportError:
    _fast_loads = None

# Less than any JSON writer refuses (orjson: 254), so that what was read can be written again.
MAX_DEPTH = 200


def parse_json(data: bytes) -> Any:
    """The value that UTF-8 JSON text says. Integers beyond 64 bits, which no JSON writer takes, come as floats.

    Raises:
        WireError: not JSON, not finite, or nested deeper than `MAX_DEPTH`.
    """
    if _fast_loads is None:
        value = _parse_plainly(data)
    else:
        try:
            value = _fast_loads(data)
        except ValueError:
            # It refuses a lone surrogate, for one, which is JSON all the same.
            value = _parse_plainly(data)
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


def _parse_plainly(data: bytes) -> Any:
    try:
        return _DECODER.decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"{len(data)} bytes are not JSON that can be read: {error}") from None


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


def _integer(text: str) -> int | float:
    # 20 digits are what 64 bits have at the most.
    value = int(text) if len(text) <= 20 else None
    return value if value is not None and -(2**63) <= value < 2**64 else _finite(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_MARK = bytes(set(range(256)) - set(b'{}[]"'))
_DECODER = json.JSONDecoder(parse_float=_finite, parse_int=_integer, parse_constant=_refuse_constant)
