"""The longest earlier sequence that another one starts with, whatever was remembered of the earlier ones."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.mdp.prefixes import PrefixIndex

# Few pieces, of lengths around the blocks that are hashed, so that many sequences share their beginnings.
pieces = st.sampled_from(
    [b"", b"a" * 4, b"b" * 4, b"a" * 1020, b"a" * 1024, b"b" * 1024, b"c" * 1028, b"a" * 3000]
)
steps = st.lists(st.tuples(st.integers(0, 40), pieces), min_size=1, max_size=40)


def longest(kept: list[bytes], sequence: bytes) -> int | None:
    """The plain way: look at all of them."""
    found = [(len(each), at) for at, each in enumerate(kept) if sequence.startswith(each)]
    return max(found)[1] if found else None


@settings(deadline=None, derandomize=True)
@given(steps)
def test_the_longest_beginning_is_found_and_of_equal_ones_the_latest(steps: list[tuple[int, bytes]]) -> None:
    index: PrefixIndex[int] = PrefixIndex()
    kept: list[bytes] = []
    for goes_on_from, piece in steps:
        # Each goes on from an earlier one, of which many are older than what the index remembers.
        sequence = (kept[goes_on_from % len(kept)] if kept else b"") + piece
        assert index.find(sequence) == longest(kept, sequence)
        index.add(sequence + b"resp", len(kept))
        kept.append(sequence + b"resp")
