"""JSON from outside: read, unless something in it would hurt later."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.json_text import MAX_DEPTH, parse_json, parse_object

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('[]{}"\\a'), inner),
)


@settings(deadline=None, derandomize=True)
@given(values)
def test_any_json_is_read(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


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
