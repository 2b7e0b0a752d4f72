"""How ids, times, numbers and messages are said on a terminal."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

# Digits of a random id that a person sees; `lsdk show` takes them.
_SHORT: Final = 8

# Joiners: invisible by themselves, but emoji and several scripts need them.
_JOINERS: Final = "\u200c\u200d"

OUTCOME_STYLES: Final[Mapping[str, str]] = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "truncated": "yellow",
    "cancelled": "yellow",
    "lost": "red",
    "unknown": "yellow",
}


def short_id(identifier: str | None, digits: int = _SHORT) -> str:
    """The first digits of an id, without its kind: "ro_3f2a9c01…" is "3f2a9c01"."""
    if not identifier:
        return "-"
    random = _random_digits(identifier)
    return one_line(random[:digits] if random else identifier)


def telling_digits(identifiers: Sequence[str]) -> int:
    """How many digits it takes to tell these random ids apart: those of `short_id`, or more."""
    known = {digits for digits in map(_random_digits, identifiers) if digits}
    return next(n for n in range(_SHORT, 33) if len({digits[:n] for digits in known}) == len(known))


def _random_digits(identifier: str) -> str | None:
    kind, _, digits = identifier.partition("_")
    return digits if len(kind) <= 3 and len(digits) == 32 else None


def duration(start_ns: int, end_ns: int | None) -> str:
    """Time between two moments: "<1ms", "3ms", "2.31s", "4m05s", "1h02m"; "-" while it lasts."""
    if not end_ns:
        return "-"
    seconds = (end_ns - start_ns) / 1e9
    if seconds < 0.0005:
        return "<1ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f}ms"
    if seconds < 59.995:
        return f"{seconds:.2f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    return f"{minutes // 60}h{minutes % 60:02}m"


def moment(time_ns: int) -> str:
    """A local date and time: "2026-03-01 14:05:09"."""
    return datetime.fromtimestamp(time_ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")


def short_moment(time_ns: int, now: datetime) -> str:
    """A local time with as much of the date as it needs: "14:05:09", "03-01 14:05", "2025-03-01"."""
    then = datetime.fromtimestamp(time_ns / 1e9)
    if then.date() == now.date():
        return then.strftime("%H:%M:%S")
    return then.strftime("%m-%d %H:%M" if then.year == now.year else "%Y-%m-%d")


def number(value: float | None) -> str:
    """A reward or return, short: "1", "0.3333", "-2.5"; "-" where there is none."""
    return "-" if value is None else f"{value:.4g}"


def count(amount: int, noun: str) -> str:
    """A number of things: "1 call", "1,200 calls"."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def tally(counts: Mapping[str, int]) -> str:
    """Counts by name, on one line, the most frequent first: "error 3, cancelled 1"."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{one_line(name)} {amount:,}" for name, amount in ordered)


def printable(text: str) -> str:
    """`text` with what a terminal would obey spelled out, an escape for example by its code in hexadecimal."""
    return text if text.isprintable() else "".join(map(_shown, text.replace("\r\n", "\n")))


def one_line(text: str) -> str:
    """`text` on one line, printable."""
    return printable(" ".join(text.split()))


def _shown(character: str) -> str:
    if character in "\n\t":
        return character
    # Controls, the escape among them; direction and zero-width marks; halves of characters; line separators.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _JOINERS:
        return character.encode("unicode_escape").decode()
    return character


def compact_json(value: Any) -> str:
    """A value as short JSON; a bare string as itself."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=repr)


def content_text(content: Any) -> str:
    """The text of a message's content, in whatever form: a string, parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return " ".join(_part_text(part) for part in content)
    return compact_json(content)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str):
                return str(part[key])
        return f"[{part.get('type', 'part')}]"
    return compact_json(part)


def tool_request(call: Any) -> str:
    """A model's request for a tool: `search({"q": "tea"})`."""
    if not isinstance(call, Mapping):
        return compact_json(call)
    function = call.get("function") or call.get("custom") or {}
    if not isinstance(function, Mapping):
        return compact_json(call)
    return f"{function.get('name')}({compact_json(function.get('arguments', function.get('input', '')))})"


def arguments(value: Any) -> str:
    """The arguments of an executed tool: `q="tea", limit=3`, or JSON where they have no names."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name}={json.dumps(each, ensure_ascii=False, default=repr)}" for name, each in value.items()
        )
    return "" if value is None else compact_json(value)
