"""Which earlier call a prompt continues: the longest prompt and response that it starts with, by exact ids.

Sequences are found by the hash of their whole blocks and the bytes of what is left over, so the work grows
with the tokens of a prompt, not with the number of earlier calls. What is found is compared byte by byte.

Most sequences begin with one that came shortly before (a response is added to its prompt, the next prompt to
both): what was hashed of that is not hashed again, since to compare bytes is many times as fast.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final, Generic, TypeVar

Key = TypeVar("Key")

# 256 tokens of 4 bytes: long enough that hashing a block, not counting it, is the work.
_BLOCK_BYTES: Final = 1024
# As many open chains as may take turns before their beginnings are hashed anew.
_REMEMBERED: Final = 8


class PrefixIndex(Generic[Key]):
    """Byte sequences with a key each; finds the longest that another sequence starts with."""

    def __init__(self) -> None:
        # Hash of the whole blocks -> length of the rest -> the rest -> (sequence, key).
        self._ends: dict[int, dict[int, dict[bytes, tuple[bytes, Key]]]] = defaultdict(dict)
        # The last sequence that was looked for, and the last that were kept, with the hashes of their blocks.
        self._sought: tuple[bytes, list[int]] = (b"", [0])
        self._kept: deque[tuple[bytes, list[int]]] = deque(maxlen=_REMEMBERED)

    def add(self, sequence: bytes, key: Key) -> None:
        """Keep a sequence. An equal one that was added before gives way."""
        hashes = self._block_hashes(sequence)
        rest = sequence[(len(hashes) - 1) * _BLOCK_BYTES :]
        self._ends[hashes[-1]].setdefault(len(rest), {})[rest] = (sequence, key)
        self._kept.append((sequence, hashes))

    def find(self, sequence: bytes) -> Key | None:
        """The key of the longest kept sequence that is the beginning of this one, or all of it."""
        hashes = self._block_hashes(sequence)
        self._sought = (sequence, hashes)
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

    def _block_hashes(self, sequence: bytes) -> list[int]:
        """Hash of the first 0, 1, 2 ... whole blocks. Not to be changed: sequences may share it."""
        known = [0]
        for beginning, hashes in (self._sought, *self._kept):
            if len(hashes) > len(known) and sequence.startswith(beginning):
                known = hashes
        if len(known) - 1 == len(sequence) // _BLOCK_BYTES:
            return known
        result = known.copy()
        for start in range((len(known) - 1) * _BLOCK_BYTES, len(sequence) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
            result.append(hash((result[-1], sequence[start : start + _BLOCK_BYTES])))
        return result
