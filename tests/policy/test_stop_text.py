"""Sampled tokens to text: characters whole, and nothing from the first stop string on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lightning_sdk.policy.stop_text import StoppableText, held_back
from support.policy_fakes import ByteTokenizer


def _spoken(text: str, stop: list[str]) -> tuple[list[str], bool]:
    """The pieces told while `text` is sampled byte by byte, and whether a stop string ended it."""
    spoken = StoppableText(ByteTokenizer(), stop)
    pieces = []
    for byte in text.encode():
        pieces.append(spoken.feed(byte))
        if spoken.stopped:
            return pieces, True
    return [*pieces, spoken.flush()], spoken.stopped


@given(st.text(alphabet="ab€🙂"), st.lists(st.text(alphabet="ab€", min_size=1, max_size=4), max_size=3))
def test_the_pieces_joined_are_the_text_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    pieces, stopped = _spoken(text, stop)
    ends = [at + len(one) for one in stop if (at := text.find(one)) >= 0]
    if not ends:
        assert ("".join(pieces), stopped) == (text, False)
    else:
        seen = text[: min(ends)]  # sampling ends with the character that completes a stop string
        first = min(seen.find(one) for one in stop if one in seen)
        assert stopped
        assert "".join(pieces) == seen[:first]


def test_a_character_of_several_tokens_comes_whole() -> None:
    assert _spoken("€!", [])[0] == ["", "", "€", "!", ""]


def test_what_may_become_a_stop_string_is_held_until_it_cannot() -> None:
    assert _spoken("abac", ["abx"])[0] == ["", "", "ab", "ac", ""]


def test_what_was_held_comes_when_sampling_ends_otherwise() -> None:
    assert "".join(_spoken("see END", ["ENDING"])[0]) == "see END"


def test_bytes_that_are_no_text_are_replaced_and_do_not_pile_up() -> None:
    spoken = StoppableText(ByteTokenizer(), [])
    told = [spoken.feed(0xFF) for _ in range(20)]
    assert any(told)
    assert "".join(told) + spoken.flush() == "\ufffd" * 20


@given(st.text(alphabet="<tol_ca>"))
def test_held_back_is_the_longest_end_that_a_marker_begins_with(text: str) -> None:
    marker = "<tool_call>"
    lengths = [n for n in range(len(marker)) if text.endswith(marker[:n])]
    assert held_back(text, [marker]) == max(lengths)
