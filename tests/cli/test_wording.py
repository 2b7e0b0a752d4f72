"""How ids, times and numbers are said."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from lightning_sdk.cli import wording


@pytest.mark.parametrize(
    ("nanoseconds", "said"),
    [
        (0, "<1ms"),
        (400_000, "<1ms"),
        (3_000_000, "3ms"),
        (999_400_000, "999ms"),
        (999_600_000, "1.00s"),
        (59_990_000_000, "59.99s"),
        (59_999_000_000, "1m00s"),
        (245_000_000_000, "4m05s"),
        (3_720_000_000_000, "1h02m"),
        (-5, "<1ms"),
    ],
)
def test_durations(nanoseconds: int, said: str) -> None:
    assert wording.duration(10**18, 10**18 + nanoseconds) == said


def test_what_lasts_has_no_duration() -> None:
    assert wording.duration(10**18, None) == "-"
    assert wording.duration(10**18, 0) == "-"


def test_a_moment_has_as_much_of_its_date_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    then = 1_000_000_000 * 10**9  # 2001-09-09 01:46:40 UTC
    assert wording.short_moment(then, datetime(2001, 9, 9, 23, 0)) == "01:46:40"
    assert wording.short_moment(then, datetime(2001, 12, 1)) == "09-09 01:46"
    assert wording.short_moment(then, datetime(2002, 1, 1)) == "2001-09-09"


@pytest.mark.parametrize(
    ("identifier", "said"),
    [
        ("ro_" + "3f2a9c01" * 4, "3f2a9c01"),
        ("run_" + "3f2a9c01" * 4, "3f2a9c01"),
        ("nightly_run", "nightly_run"),
        ("my run", "my run"),
        ("", "-"),
        (None, "-"),
    ],
)
def test_only_random_ids_are_shortened(identifier: str | None, said: str) -> None:
    assert wording.short_id(identifier) == said


def test_an_id_is_as_long_as_it_takes_to_tell_it_from_others() -> None:
    one, other, third = ("ro_" + digits.ljust(32, "0") for digits in ("aaaaaaaaaa1", "aaaaaaaaaa2", "b"))
    assert wording.telling_digits([]) == wording.telling_digits([one, third, "named", one]) == 8
    assert wording.telling_digits([one, other, third]) == 11
    assert wording.short_id(other, 11) == "aaaaaaaaaa2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "plain, caf\u00e9, \u8336, \U0001f469\u200d\U0001f680",
            "plain, caf\u00e9, \u8336, \U0001f469\u200d\U0001f680",
        ),
        ("\x1b[2J\x9b\x07\x08\x7f", "\\x1b[2J\\x9b\\x07\\x08\\x7f"),
        ("\u202e\u2066\ufeff\u2028\ud800", "\\u202e\\u2066\\ufeff\\u2028\\ud800"),
        ("a\tb\nc\r\nd\re", "a\tb\nc\nd\\re"),
        ("[bold]x[/bold] :boom:", "[bold]x[/bold] :boom:"),
    ],
)
def test_what_a_terminal_would_obey_is_spelled_out(text: str, said: str) -> None:
    assert wording.printable(text) == said


def test_numbers() -> None:
    assert [wording.number(each) for each in (None, 0.0, 1.0, 1 / 3, -2.5)] == [
        "-",
        "0",
        "1",
        "0.3333",
        "-2.5",
    ]
    assert [wording.count(n, "call") for n in (0, 1, 1200)] == ["0 calls", "1 call", "1,200 calls"]
    assert wording.tally({"b": 1, "a": 1, "c": 1200}) == "c 1,200, a 1, b 1"
