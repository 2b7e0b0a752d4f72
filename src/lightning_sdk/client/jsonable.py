"""Any Python value as JSON: what JSON cannot say is written as its `repr()`, so that it never fails."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_MAX_DEPTH = 100


def to_json(value: object) -> bytes:
    """Serialize to UTF-8. Never raises, whatever the value is or its ``__repr__`` does."""
    try:
        text = json.dumps(
            value, default=_safe_repr, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
    except Exception:
        plain = _plain(value, frozenset())
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate becomes a JSON escape of the same code unit.
    return text.encode("utf-8", "backslashreplace")


def object_to_json(values: Mapping[Any, Any]) -> bytes:
    """Serialize a mapping as a JSON object, whatever its keys are."""
    return to_json({_key(key): value for key, value in values.items()})


def _plain(value: Any, above: frozenset[int]) -> object:
    """A copy of `value` that JSON can say. `above` holds the ids of the containers that it stands in."""
    # By the type, since an object may lie about its class; and by the methods of dict, since a subclass may
    # have others.
    kind = type(value)
    if value is None or issubclass(kind, str | bool):
        return value
    if issubclass(kind, int):
        return _plain_int(value)
    if issubclass(kind, float):
        number = float.__add__(value, 0.0)
        return number if math.isfinite(number) else float.__repr__(number)
    if not issubclass(kind, dict | list | tuple):
        return _safe_repr(value)
    if id(value) in above or len(above) >= _MAX_DEPTH:
        return f"<{type(value).__name__} that contains itself or is nested too deep>"
    above |= {id(value)}
    if issubclass(kind, dict):
        return {_key(key): _plain(item, above) for key, item in list(dict.items(value))}
    items = list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value)
    return [_plain(item, above) for item in items]


def _plain_int(value: int) -> int | str:
    """Python refuses to write an int of very many digits in decimal; in hexadecimal it writes any."""
    try:
        int.__repr__(value)
    except ValueError:
        return hex(value)
    return value


def _key(key: Any) -> str:
    if issubclass(type(key), str):
        return str.__str__(key)
    if type(key) is int:
        return str(_plain_int(key))
    return _safe_repr(key)


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__} without a repr>"
