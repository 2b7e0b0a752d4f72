"""What tools take and answer is written down without the user's code, in bounded time and space."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

import lightning_sdk as ls
from lightning_sdk.client.jsonable import MAX_CHARACTERS, object_to_json, to_json
from lightning_sdk.testing import capture


class Called(AssertionError):
    pass


def refuse(*_: object, **__: object) -> Any:
    raise Called


class Dict(dict):  # type: ignore[type-arg]
    items = keys = values = __iter__ = __getitem__ = __len__ = __bool__ = refuse


class List(list):  # type: ignore[type-arg]
    __iter__ = __getitem__ = __len__ = __bool__ = copy = refuse


class Tuple(tuple):  # type: ignore[type-arg]
    __iter__ = __getitem__ = __len__ = __bool__ = refuse


class Int(int):
    __repr__ = __str__ = __format__ = __int__ = __index__ = bit_length = __add__ = refuse


class Float(float):
    __repr__ = __str__ = __float__ = __add__ = refuse


class Str(str):
    __str__ = __repr__ = __len__ = __getitem__ = __iter__ = encode = __format__ = refuse


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Dict(a=[1]), {"a": [1]}),
        (List([1, {"b": 2}]), [1, {"b": 2}]),
        (Tuple((1, 2)), [1, 2]),
        (Int(7), 7),
        (Float(0.5), 0.5),
        (Str("text"), "text"),
        ({Str("key"): Str("text"), Int(3): OrderedDict(x=1)}, {"key": "text", "3": {"x": 1}}),
    ],
    ids=["dict", "list", "tuple", "int", "float", "str", "keys"],
)
def test_no_method_of_a_derived_type_is_called(value: object, expected: object) -> None:
    assert json.loads(to_json(value)) == expected
    assert json.loads(to_json([{"in": value}])) == [{"in": expected}]
    assert json.loads(object_to_json(Dict(n=value))) == {"n": expected}


def nested_doubles() -> list[Any]:
    """It would be written as 2**60 brackets."""
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "x" * 70_000_000,
        b"x" * 70_000_000,
        Str("x" * (2 * MAX_CHARACTERS)),
        ["x" * 1000] * 70_000,
        [1.5] * 3_000_000,
        {f"key {number}": number for number in range(300_000)},
        {"x" * 3_000_000: 1},
        [10**4000] * 20_000,
        1 << 70_000_000,
        nested_doubles(),
        [object()] * 500_000,
    ],
    ids=[
        "text",
        "bytes",
        "derived",
        "texts",
        "numbers",
        "dict",
        "key",
        "long ints",
        "int",
        "doubles",
        "objects",
    ],
)
def test_what_is_long_is_cut_where_the_mark_is_and_stays_json(value: object) -> None:
    with capture() as cap, ls.rollout():
        echo(value, 5)
    (tool,) = cap.tools
    assert tool.outcome == "ok"
    for body in (cap.records[2].record.tool_call.arguments, cap.records[2].record.tool_call.result):
        assert len(body) < 9 * MAX_CHARACTERS
        assert "by lightning_sdk" in json.dumps(json.loads(body), ensure_ascii=False)


@ls.trace_tool
def echo(value: object, other: object) -> object:
    return value


def test_what_is_just_short_enough_is_whole() -> None:
    text = "x" * MAX_CHARACTERS
    assert json.loads(to_json(text)) == text
    assert json.loads(to_json([text[:-100]])) == [text[:-100]]


def test_metadata_and_notes_are_cut_too_and_a_mapping_that_cannot_be_read_is_shown() -> None:
    class Odd(dict):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            raise LookupError

    with capture() as cap, ls.rollout(metadata=Odd(big="x" * 70_000_000)):
        ls.annotate(big="y" * 70_000_000)
    (episode,) = cap.episodes()
    assert len(str(episode.metadata)) < 2 * MAX_CHARACTERS
