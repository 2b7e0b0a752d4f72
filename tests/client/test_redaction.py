"""What counts as a secret, and what does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightning_sdk.client.jsonable import object_to_json, to_json
from lightning_sdk.client.redact import redact, redact_text

DIGITS = "0123456789abcdefghijABCDEFGHIJ0123456789"
# In parts, so that no search for leaked keys finds this file.
MADE_KEYS = [
    "AKIA" + "IOSFODNN7EXAMPLE",
    "sk-" + "proj-abc123def456ghi789",
    *(f"gh{kind}_" + DIGITS for kind in "pousr"),
    "github_" + "pat_" + DIGITS + "_x",
    "hf_" + DIGITS,
    "glpat" + "-" + DIGITS[:20],
    "xoxb" + "-123456789012-abcdefghij",
    "AIza" + DIGITS[:35],
    "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0In0.c2lnbmF0dXJl",
]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"key sk-proj-abc123def456ghi789.", b"key [redacted]."),
        (b"sk-ant-api03-AbCdEf0123456789", b"[redacted]"),
        (b"Authorization: Bearer eyJhbGciOi.J9x_y-z", b"Authorization: Bearer [redacted]"),
        (b'{"api_key": "xyz", "n": 1}', b'{"api_key": "[redacted]", "n": 1}'),
        (b'{"Authorization":"Basic dXNlcjpwYXNz"}', b'{"Authorization":"[redacted]"}'),
        (b'{"x-api-key":"abc"}', b'{"x-api-key":"[redacted]"}'),
        (b'{"OPENAI_API_KEY" : "abc"}', b'{"OPENAI_API_KEY" : "[redacted]"}'),
        (b'{"aws_secret_access_key":"wJalr+/x"}', b'{"aws_secret_access_key":"[redacted]"}'),
        (b'{"arguments":"{\\"api_key\\": \\"xyz\\"}"}', b'{"arguments":"{\\"api_key\\": \\"[redacted]\\"}"}'),
        (b"id AKIAIOSFODNN7EXAMPLE here", b"id [redacted] here"),
        *((b"the key\\n" + key.encode() + b"\\n", b"the key\\n[redacted]\\n") for key in MADE_KEYS),
        *((b'{"k":"' + key.encode() + b'"}', b'{"k":"[redacted]"}') for key in MADE_KEYS),
        (b"postgres://user:p%40ss@db/x", b"postgres://[redacted]@db/x"),
        (b"http://h/x?key=abc&y=1", b"http://h/x?key=[redacted]&y=1"),
        (b"http://h/x?y=1&access_token=abc", b"http://h/x?y=1&access_token=[redacted]"),
    ],
)
def test_secrets_are_replaced_and_nothing_else_is(body: bytes, expected: bytes) -> None:
    assert redact(body) == (expected, 1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"sk-learn-compatible-estimators",
        b"task-0123456789abcdefghij",
        b"monkey=banana",
        b'{"token_ids": [1, 2, 3], "max_tokens": 16}',
        b"the bearer of news",
        b'{"monkey": "see"}',
        b"https://example.com/a:b@c",
        b"AKIATOOSHORT",
        b"ghp_short hf_model_name glpat-x xoxo- AIzaak",
        b"c29tZSBieXRlcw" + ("AIza" + DIGITS[:35]).encode() + b"==",
        b"eyJhbGciOiJIUzI1NiJ9 alone",
        b"a.path\\\\task-0123456789abcdefghij",
        b"MEDIA and ASIAN",
        b"\xff\xfe not text \x00",
    ],
)
def test_what_only_looks_like_one_stays(body: bytes) -> None:
    assert redact(body) == (body, 0)


def test_several_secrets_are_counted_and_json_stays_json() -> None:
    body = json.dumps({"api_key": "k1", "m": ["Bearer abcdefgh1", "sk-abcdefghijklmnop1"]}).encode()
    replaced, count = redact(body)
    assert count == 3
    assert json.loads(replaced) == {"api_key": "[redacted]", "m": ["Bearer [redacted]", "[redacted]"]}


def test_a_secret_that_two_patterns_find_is_one() -> None:
    assert redact(b'{"api_key": "sk-abcdefghijklmnop1"}') == (b'{"api_key": "[redacted]"}', 1)


def test_the_hook_gets_what_the_patterns_left_and_a_wrong_answer_withholds_the_body() -> None:
    assert redact(b"sk-abcdefghijklmnop1 Alice", lambda body: body.replace(b"Alice", b"NAME")) == (
        b"[redacted] NAME",
        2,
    )
    assert redact(b"text", lambda body: body) == (b"text", 0)
    assert redact(b"text", lambda body: body.decode()) == (b"", 1)  # type: ignore[arg-type, return-value]


def test_text_is_redacted_as_bodies_are() -> None:
    assert redact_text("key sk-abcdefghijklmnop1 é") == "key [redacted] é"


class Liar(dict):  # type: ignore[type-arg]
    """A dict that can be neither read nor shown by its own methods."""

    def items(self) -> Any:
        raise LookupError

    def __repr__(self) -> str:
        raise LookupError


class Pretender:
    @property
    def __class__(self) -> type:  # type: ignore[override]
        return dict

    def __repr__(self) -> str:
        return "pretender"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (10**5000, hex(10**5000)),
        ([-(10**5000), 7], [hex(-(10**5000)), 7]),
        ({10**5000: 1, 3: 2}, {hex(10**5000): 1, "3": 2}),
        (Liar(a=1), {"a": 1}),
        ([Pretender()], ["pretender"]),
        ({"deep": (float("nan"), 1.5)}, {"deep": ["nan", 1.5]}),
    ],
    ids=["huge int", "in a list", "as a key", "broken dict", "lying class", "not finite"],
)
def test_a_value_that_python_does_not_write_by_itself_loses_nothing_beside_it(
    value: object, expected: object
) -> None:
    assert json.loads(to_json(value)) == expected
    assert json.loads(object_to_json({"n": value, "kept": 1})) == {"n": expected, "kept": 1}


def test_any_value_becomes_json() -> None:
    cycle: list[object] = [1]
    cycle.append(cycle)
    shared = {"a": (1, 2.5, None), (1, 2): b"x", "lone": "\ud800"}
    assert json.loads(to_json(shared)) == {"a": [1, 2.5, None], "(1, 2)": "b'x'", "lone": "\ud800"}
    assert json.loads(to_json(cycle)) == [1, "<list that contains itself or is nested too deep>"]
    assert json.loads(to_json([float("inf"), "é"])) == ["inf", "é"]
