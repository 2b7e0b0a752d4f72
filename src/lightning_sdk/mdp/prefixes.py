"""Which earlier call a prompt continues: the longest prompt and response that it starts with, by exact ids.

Sequences are found by the hash of their whole blocks and the bytes of what is left over, so the work grows
with the tokens of a prompt, not with the number of earlier calls. What is found is compared byte by byte.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Generic, TypeVar

Key = TypeVar("Key")

# 64 tokens of 4 bytes.
_BLOCK_BYTES = 256


class PrefixIndex(Generic[Key]):
    """Byte sequences with a key each; finds the longest that another sequence starts with."""

    def __init__(self) -> None:
        # Hash of the whole blocks -> length of the rest -> the rest -> (sequence, key).
        self._ends: dict[int, dict[int, dict[bytes, tuple[bytes, Key]]]] = defaultdict(dict)

    def add(self, sequence: bytes, key: Key) -> None:
        """Keep a sequence. An equal one that was added before gives way."""
        hashes = _block_hashes(sequence)
        rest = sequence[(len(hashes) - 1) * _BLOCK_BYTES :]
        self._ends[hashes[-1]].setdefault(len(rest), {})[rest] = (sequence, key)

    def find(self, sequence: bytes) -> Key | None:
        """The key of the longest kept sequence that is the beginning of this one, or all of it."""
        hashes = _block_hashes(sequence)
        for blocks in range(len(hashes) - 1, -1, -1):
            by_length = self._ends.get(hashes[blocks])
            if by_length is None:
                continue
            start = blocks * _BLOCK_BYTES
            for length in sorted(by_length, reverse=True):
                found = by_length[length].get(sequence[start : start + length])
                # Equal hashes are no proof.
                if found is not None and sequence.startswith(found[0]):
                    return found[1]
        return None


def _block_hashes(sequence: bytes) -> list[int]:
    """Hash of the first 0, 1, 2 ... whole blocks."""
    hashes = [0]
    for start in range(0, len(sequence) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        hashes.append(hash((hashes[-1], sequence[start : start + _BLOCK_BYTES])))
    return hashes
