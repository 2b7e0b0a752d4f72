"""JSON objects that come in pieces, put together: what the streams of several APIs have in common."""

from __future__ import annotations

from typing import Any

from lightning_sdk.errors import WireError

# Said again, not continued, when a delta repeats them.
_WHOLE = frozenset({"role", "type"})


class Text(list[str]):
    """Text that is still growing: its pieces, joined once at the end, so that long streams stay linear."""


def merge(held: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta: text goes on, lists grow, objects are merged, the rest is replaced."""
    for key, value in delta.items():
        if value is None:
            held.setdefault(key, None)
        elif isinstance(value, str) and key not in _WHOLE:
            _add_text(held, key, value)
        elif isinstance(value, dict):
            merge(dict_at(held, key), value)
        elif isinstance(value, list):
            list_at(held, key).extend(value)
        else:
            held[key] = value


def _add_text(held: dict[str, Any], key: str, piece: str) -> None:
    text = held.get(key)
    if not isinstance(text, Text):
        held[key] = Text([piece])
    elif key != "id" or text != [piece]:  # some servers repeat the id of a tool call in every chunk
        text.append(piece)


def dict_at(held: dict[str, Any], key: str) -> dict[str, Any]:
    """The object at `key`, made where there is none."""
    if not isinstance(held.get(key), dict):
        held[key] = {}
    inner: dict[str, Any] = held[key]
    return inner


def list_at(held: dict[str, Any], key: str) -> list[Any]:
    """The list at `key`, made where there is none."""
    if not isinstance(held.get(key), list) or isinstance(held[key], Text):
        held[key] = []
    inner: list[Any] = held[key]
    return inner


def joined(held: dict[str, Any]) -> dict[str, Any]:
    """`held` with its growing text as strings."""
    return {
        key: "".join(value)
        if isinstance(value, Text)
        else joined(value)
        if isinstance(value, dict)
        else value
        for key, value in held.items()
    }


def objects(value: Any) -> list[dict[str, Any]]:
    """A list of JSON objects; none for None.

    Raises:
        WireError: it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise WireError("choices or tool calls in a stream are not a list of JSON objects")
    return value


def index_of(piece: dict[str, Any], position: int) -> int:
    """Which one a piece belongs to.

    Raises:
        WireError: its index is no number.
    """
    # Some servers leave the index out where there is only one.
    index = piece.get("index")
    if index is None:
        return position
    if type(index) is not int:
        raise WireError("an index in a stream is not a number")
    return index
