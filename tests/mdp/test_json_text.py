"""JSON from outside: read, unless something in it would hurt later."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.errors import WireError
from lightning_sdk.mdp import json_text
from lightning_sdk.mdp.json_text import MAX_DEPTH, parse_json, parse_object

integers = st.integers(-(2**63), 2**64 - 1)
values = st.recursive(
    st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('[]{}"\\a'), inner),
)


@settings(deadline=None, derandomize=True)
@given(values)
def test_any_json_is_read(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def read_plainly(data: bytes) -> Any:
    """As where orjson is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_fast_loads", None)
        return parse_json(data)


def told(read: Any, data: bytes) -> str:
    """What a reader makes of bytes: 1, 1.0 and True are not the same."""
    try:
        return repr(read(data))
    except WireError:
        return "refused"


# Pieces of JSON, whole and broken.
scraps = st.lists(
    st.sampled_from(
        [
            *(
                b"{",
                b"}",
                b"[",
                b"]",
                b'"',
                b'"',
                b",",
                b":",
                b" ",
                b'"k":',
                b"\\",
                b"u00e9",
                b"\\ud800",
                b"\\udc00",
            ),
            *(b"-", b"0", b"1", b"9" * 18, b"18446744073709551616", b".", b"e", b"E+", b"308"),
            *(b"null", b"true", b"NaN", b"a", b"\xc3\xa9", b"\xff", b"\x00", b"\n"),
        ]
    ),
    max_size=12,
).map(b"".join)


@settings(deadline=None, derandomize=True, max_examples=500)
@given(scraps | values.map(lambda value: json.dumps(value).encode()))
def test_orjson_and_the_standard_library_read_the_same(data: bytes) -> None:
    assert told(parse_json, data) == told(read_plainly, data)


@pytest.mark.parametrize("read", [parse_json, read_plainly])
def test_integers_beyond_64_bits_are_floats(read: Any) -> None:
    data = b"[18446744073709551615, 18446744073709551616, -9223372036854775808, -9223372036854775809]"
    told = read(data)
    assert told == [2**64 - 1, 2.0**64, -(2**63), -(2.0**63)]
    assert [type(value) for value in told] == [int, float, int, float]


@pytest.mark.parametrize("read", [parse_json, read_plainly])
def test_half_a_surrogate_pair_is_read(read: Any) -> None:
    assert read(b'"\\ud800"') == "\ud800"


@pytest.mark.parametrize(
    "siblings", ["", '"[", "\\\\", "\\"[{", {"]": "}"}, ' * 100], ids=["alone", "amid others"]
)
@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"[": ', "}")])
def test_nesting_is_limited(siblings: str, left: str, right: str) -> None:
    def nested(depth: int) -> bytes:
        return f"[{siblings}{left * (depth - 2)}[]{right * (depth - 2)}]".encode()

    parse_json(nested(MAX_DEPTH))
    with pytest.raises(WireError, match="deeper than 200"):
        parse_json(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "-Infinity", "1e999", '{"x": -1e400}', "", "{", "\ufeff{}"]
)
def test_what_is_not_finite_json_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        parse_json(text.encode())


def test_an_object_is_an_object_or_nothing() -> None:
    assert parse_object(b'{"a": 1}') == {"a": 1}
    assert [parse_object(data) for data in (b"", b"[]", b"{", b"null")] == [None] * 4
