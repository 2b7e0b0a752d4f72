"""Any Python value as JSON: what JSON cannot say is written as its `repr()`, so that it never fails.

Of the user's code nothing but `__repr__` runs. What is longer than a record should be is cut, with a mark where
something was left out: writing it down takes a time and space that the agent does not notice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from lightning_sdk.client import faults

# Of one value, about: its strings, and a few characters for each number and bracket.
MAX_CHARACTERS: Final = 1 << 20

_MAX_DEPTH = 100
_NUMBERS = frozenset({int, float, bool, type(None)})
_SCALARS = _NUMBERS | {str}
_CONTAINERS = frozenset({dict, list, tuple})
_ORDINARY = _SCALARS | _CONTAINERS
# What a number or a bracket is taken to need.
_FEW = 8


def to_json(value: object) -> bytes:
    """Serialize to UTF-8. Never raises, whatever the value is or its ``__repr__`` does.

    Only what a signal handler of the agent raises meanwhile comes out.
    """
    text = _written_whole(value) if _is_ordinary(value) else None
    if text is None:
        text = _encode(_Copy().of(value, frozenset()))
    # A lone surrogate becomes a JSON escape of the same code unit.
    return text.encode("utf-8", "backslashreplace")


def object_to_json(values: Mapping[Any, Any]) -> bytes:
    """Serialize a mapping as a JSON object, whatever its keys are."""
    return to_json({_key(key): value for key, value in _items(values)})


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


def _items(values: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    if issubclass(type(values), dict):
        return list(dict.items(values))  # type: ignore[arg-type]
    try:
        return [(key, value) for key, value in values.items()]
    except BaseException as error:
        faults.pass_on_unless_raised(error)
        return [("…", values)]


def _written_whole(value: object) -> str | None:
    """None where that takes more care: of NaN, of cycles, of integers that Python does not write."""
    try:
        text = _encode(value)
    except Exception as error:
        faults.pass_on(error)
        return None
    # Integers may be long, too.
    return text if len(text) <= 8 * MAX_CHARACTERS else None


def _is_ordinary(value: object) -> bool:
    """Whether it consists of exactly the types that JSON has, and is short and flat enough to be written whole.

    Of derived types, the encoder would call methods of the user's.
    """
    kind = type(value)
    if kind is str:
        return len(value) <= MAX_CHARACTERS  # type: ignore[arg-type]
    if kind in _NUMBERS:
        return True
    left = MAX_CHARACTERS
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        if any(type(container) not in _CONTAINERS for container in level):
            return False
        below: list[Any] = []
        for container in level:
            # Copied at once, since another thread may change it.
            is_dict = type(container) is dict
            items = [*container, *container.values()] if is_dict else list(container)
            kinds = set(map(type, items))
            if not kinds <= _ORDINARY or (is_dict and set(map(type, container)) != {str} and container):
                return False
            left -= _FEW * (len(items) + 1)
            if str in kinds:
                left -= sum(len(item) for item in items if type(item) is str)
            if int in kinds:
                left -= sum(item.bit_length() for item in items if type(item) is int) // 8
            if left < 0:
                return False
            if not kinds <= _SCALARS:
                below += [item for item in items if type(item) in _CONTAINERS]
        if not below:
            return True
        level = below
    return False


class _Copy:
    """Makes a copy that JSON can say, of about `MAX_CHARACTERS`."""

    __slots__ = ("_is_cut", "_left")

    def __init__(self) -> None:
        self._left = MAX_CHARACTERS
        self._is_cut = False

    def of(self, value: Any, above: frozenset[int]) -> object:
        """The copy of `value`. `above` holds the ids of the containers that it stands in."""
        # By the type, since an object may lie about its class; and by the methods of the builtin types, since
        # a derived one may have others.
        kind = type(value)
        self._left -= _FEW
        if value is None or kind is bool:
            return value
        if issubclass(kind, str):
            return self._text(str.__str__(value))
        if issubclass(kind, int):
            return self._integer(value)
        if issubclass(kind, float):
            number = float.__add__(value, 0.0)
            return number if math.isfinite(number) else float.__repr__(number)
        if not issubclass(kind, dict | list | tuple):
            return self._text(self._repr(value))
        if id(value) in above or len(above) >= _MAX_DEPTH:
            return f"<{name_of(kind)} that contains itself or is nested too deep>"
        above |= {id(value)}
        if issubclass(kind, dict):
            return self._dict(list(dict.items(value)), above)
        return self._list(list.copy(value) if issubclass(kind, list) else list(tuple.__iter__(value)), above)

    def _dict(self, items: list[tuple[Any, Any]], above: frozenset[int]) -> dict[str, object]:
        copy: dict[str, object] = {}
        for key, item in items:
            if self._left <= 0:
                copy["…"] = self._left_out(items, len(copy))
                break
            copy[self._text(_key(key))] = self.of(item, above)
        return copy

    def _list(self, items: list[Any], above: frozenset[int]) -> list[object]:
        copy: list[object] = []
        for item in items:
            if self._left <= 0:
                copy.append(self._left_out(items, len(copy)))
                break
            copy.append(self.of(item, above))
        return copy

    def _integer(self, value: int) -> int | str:
        self._left -= int.bit_length(value) // 3
        if self._left < 0:
            self._cut()
            return f"… (an integer of {int.bit_length(value)} bits was left out by lightning_sdk)"
        return _plain_int(value)

    def _repr(self, value: Any) -> str:
        if type(value) in (bytes, bytearray) and len(value) > max(self._left, 0):
            length, value = len(value), value[: max(self._left, 0)]
            self._cut()
            return f"{_safe_repr(value)}… (cut by lightning_sdk, {length} bytes)"
        return _safe_repr(value)

    def _text(self, text: str) -> str:
        left = max(self._left, 0)
        self._left -= len(text)
        if len(text) <= left:
            return text
        self._cut()
        return f"{text[:left]}… (cut by lightning_sdk, {len(text)} characters)"

    def _left_out(self, items: Collection[Any], kept: int) -> str:
        self._cut()
        return f"… ({len(items) - kept} more left out by lightning_sdk)"

    def _cut(self) -> None:
        if not self._is_cut:
            self._is_cut = True
            faults.count("values_cut")


def _plain_int(value: int) -> int | str:
    """Python refuses to write an int of very many digits in decimal; in hexadecimal it writes any."""
    try:
        int.__repr__(value)
    except ValueError as error:
        faults.pass_on(error)
        return int.__format__(value, "#x")
    return int.__add__(value, 0)


def _key(key: Any) -> str:
    if issubclass(type(key), str):
        return str.__str__(key)
    if issubclass(type(key), int) and type(key) is not bool:
        return str(_plain_int(key))
    return _safe_repr(key)


def _safe_repr(value: object) -> str:
    try:
        return str.__str__(repr(value))
    except BaseException as error:
        faults.pass_on_unless_raised(error)
        return f"<{name_of(type(value))} without a repr>"


def name_of(kind: type) -> str:
    """The name of a class, whatever its metaclass says."""
    return str.__str__(_TYPE_NAME(kind))


_TYPE_NAME: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__  # type: ignore[index]
