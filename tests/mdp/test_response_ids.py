"""The id of a response is found without decoding the body, and nothing that a server answers does harm."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.mdp.response_ids import response_id
from lightning_sdk.records import Call


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"id": "chatcmpl-1", "choices": []}', "chatcmpl-1"),
        (b' {\n "id" :\t"chatcmpl-1"}', "chatcmpl-1"),
        (b'{"object": "x", "id": "chatcmpl-1"}', "chatcmpl-1"),
        (b'{"choices": [{"id": "inner"}], "id": "outer"}', "outer"),
        (b'{"choices": [{"id": "inner"}]}', None),
        (b'{"id": "\\u00e9\\"", "x": 1}', '\u00e9"'),
        ('{"id": "\u00e9"}'.encode(), "\u00e9"),
        # What was cut off keeps the id that it began with.
        (b'{"id": "chatcmpl-1", "choices": [{"mess', "chatcmpl-1"),
        (b'{"object": "x", "id": "chatcmpl-1", "cho', None),
        (b'{"id": ""}', None),
        (b'{"id": null}', None),
        (b'{"id": 7}', None),
        (b'[{"id": "x"}]', None),
        (b"", None),
        (b"<html>", None),
    ],
)
def test_the_id_of_a_body(body: bytes, found: str | None) -> None:
    assert response_id(Call(response=body)) == found


def test_the_id_of_a_stream_is_that_of_the_first_event_that_has_one() -> None:
    events = [b"", b"[DONE]", b'{"id": "", "choices": []}', b'{"id": "c-1"}', b'{"id": "c-2"}']
    assert response_id(Call(streamed=True, events=events)) == "c-1"
    assert response_id(Call(streamed=True, events=[b"{}"] * 1000 + [b'{"id": "c-1"}'])) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "' + b"x" * 257 + b'"}',
        b'{"a": 1, "id": "' + b"x" * 257 + b'"}',
        b'{"a": 1, "id": "\\ud800"}',  # half a surrogate pair: no UTF-8, so no store could hold it
        b'{"a": ' + b"[" * 100_000 + b', "id": "x"}',
        b'{"a": ' + b"9" * 5_000 + b', "id": "x"}',
        b'{"a": NaN, "id": "x"}',
        b'{"a": "' + b"x" * (2 << 20) + b'", "id": "x"}',  # hidden behind more than is decoded
    ],
)
def test_what_no_index_can_hold_is_none(body: bytes) -> None:
    assert response_id(Call(response=body)) is None
    assert response_id(Call(streamed=True, events=[body])) is None


@settings(deadline=None, derandomize=True)
@given(st.binary() | st.text().map(lambda text: json.dumps({"id": text, "x": text}).encode()))
def test_any_bytes_give_an_id_that_can_be_stored_or_none(body: bytes) -> None:
    found = response_id(Call(response=body))
    assert found is None or 0 < len(found.encode()) <= 4 * 256
