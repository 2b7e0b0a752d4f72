"""Any Python value as JSON: what JSON cannot say is written as its `repr()`, so that it never fails."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_MAX_DEPTH = 100


def to_json(value: object) -> bytes:
    """Serialize to UTF-8. Never raises for a value, and calls no code of the value's but its ``__repr__``."""
    try:
        text = json.dumps(
            value, default=_safe_repr, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
    except (TypeError, ValueError, RuntimeError):
        plain = _plain(value, frozenset())
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate becomes a JSON escape of the same code unit.
    return text.encode("utf-8", "backslashreplace")


def object_to_json(values: Mapping[Any, Any]) -> bytes:
    """Serialize a mapping as a JSON object, whatever its keys are."""
    return to_json({_key(key): value for key, value in values.items()})


def _plain(value: object, above: frozenset[int]) -> object:
    """A copy of `value` that JSON can say. `above` holds the ids of the containers that it stands in."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if not isinstance(value, dict | list | tuple):
        return _safe_repr(value)
    if id(value) in above or len(above) >= _MAX_DEPTH:
        return f"<{type(value).__name__} that contains itself or is nested too deep>"
    above |= {id(value)}
    if isinstance(value, dict):
        return {_key(key): _plain(item, above) for key, item in list(value.items())}
    return [_plain(item, above) for item in value]


def _key(key: object) -> str:
    return key if isinstance(key, str) else _safe_repr(key)


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__} without a repr>"
