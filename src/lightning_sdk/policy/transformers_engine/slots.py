"""Keys and values of many sequences in fixed places, so that sequences join and leave a batch independently.

Slot s holds one sequence from column 0 on. The batch that runs is slots 0 to B-1; the others keep what
finished sequences left behind, as a cache of prefixes: a new prompt takes over what it shares with any slot,
token by token, and only the rest is computed.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache

_COLUMN_BLOCK = 256


class KeyValueSlots(Cache):
    """The cache object that a model's forward pass is given. One thread uses it."""

    def __init__(self, count: int) -> None:
        super().__init__(layers=[])
        self.count = count
        # The tokens whose keys and values each slot holds.
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self._used_at = [0] * count
        self._clock = 0
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._columns = 0
        self._rows = slice(0, 0)
        self._places = torch.empty(0, 0, dtype=torch.long)
        self._span = 0

    def open(self, first: int, positions: torch.Tensor) -> None:
        """Aim the next forward pass at slots `first` and following, row i at columns `positions[i]`.

        What is at a negative position is kept nowhere.
        """
        self._rows = slice(first, first + positions.shape[0])
        self._span = int(positions.max()) + 1
        if self._span > self._columns:
            self._grow(self._span)
        # Behind the last column is one that nobody ever looks at.
        self._places = positions.masked_fill(positions < 0, self._columns)

    @property
    def span(self) -> int:
        """Columns that the opened pass attends over."""
        return self._span

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep a layer's new keys and values, (B, heads, T, size); return all that it attends over."""
        if layer_idx == len(self._keys):
            self._keys.append(self._empty_like(key_states))
            self._values.append(self._empty_like(value_states))
        rows = torch.arange(self._rows.start, self._rows.stop, device=key_states.device)[:, None]
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[rows, :, self._places] = key_states.transpose(1, 2)
        values[rows, :, self._places] = value_states.transpose(1, 2)
        return keys[self._rows, :, : self._span], values[self._rows, :, : self._span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Never asked where positions are given; the span, for models that ask all the same."""
        return self._span

    def claim(self, slot: int, prompt: list[int]) -> int:
        """Make `slot`, the first that is not running, hold as long a prefix of `prompt` as any slot has.

        Returns:
            The prefix's length: less than the prompt's, because at least one token must run to give logits.
        """
        shared = [common_prefix(held, prompt) for held in self.tokens]
        donor = max(range(self.count), key=shared.__getitem__)
        length = min(shared[donor], len(prompt) - 1)
        if donor >= slot and shared[donor] == len(self.tokens[donor]):
            # All it holds is wanted: a conversation goes on where it left off.
            self.swap(donor, slot)
        else:
            oldest = min((s for s in range(slot, self.count) if s != donor), key=self._used_at.__getitem__)
            self.swap(oldest, slot)
            self._copy(oldest if donor == slot else donor, slot, length)
        self.tokens[slot] = list(prompt[:length])
        if len(prompt) > self._columns:
            self._grow(len(prompt))  # at once, not with each piece of the prompt
        return length

    def catch_up(self, slot: int, prompt: list[int]) -> int:
        """Take over what another slot holds by now of `prompt`, where that is more than `slot` holds.

        Returns:
            How many tokens of `prompt`, of which `slot` holds a prefix, it holds now; never all of them.
        """
        length = len(self.tokens[slot])
        if length + 1 < len(prompt):
            shared = [common_prefix(held, prompt) for held in self.tokens]
            donor = max(range(self.count), key=shared.__getitem__)
            longest = min(shared[donor], len(prompt) - 1)
            if longest > length:
                self._copy(donor, slot, longest)
                self.tokens[slot] = list(prompt[:longest])
                length = longest
        return length

    def swap(self, a: int, b: int) -> None:
        """Exchange two slots."""
        if a == b:
            return
        width = max(len(self.tokens[a]), len(self.tokens[b]))
        for held in (*self._keys, *self._values):
            kept = held[a, :, :width].clone()
            held[a, :, :width] = held[b, :, :width]
            held[b, :, :width] = kept
        self.tokens[a], self.tokens[b] = self.tokens[b], self.tokens[a]
        self._used_at[a], self._used_at[b] = self._used_at[b], self._used_at[a]

    def touch(self, slot: int) -> None:
        """Note that `slot` was used just now; the longest unused one is given up first."""
        self._clock += 1
        self._used_at[slot] = self._clock

    def forget(self) -> None:
        """Hold nothing any more: what is there was computed from other weights."""
        self.tokens = [[] for _ in range(self.count)]

    def clear(self) -> None:
        """Forget everything and free the memory."""
        self._keys, self._values, self._columns = [], [], 0
        self.forget()

    def _copy(self, source: int, target: int, width: int) -> None:
        for held in (*self._keys, *self._values):
            held[target, :, :width] = held[source, :, :width]

    def _empty_like(self, states: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = states.shape
        # Zeros, not garbage: a masked column still meets the softmax, where 0 x NaN would be NaN.
        return states.new_zeros((self.count, heads, self._columns + 1, size))

    def _grow(self, span: int) -> None:
        self._columns = -(-span // _COLUMN_BLOCK) * _COLUMN_BLOCK
        for held in (self._keys, self._values):
            for layer, old in enumerate(held):
                held[layer] = old.new_zeros((*old.shape[:2], self._columns + 1, old.shape[3]))
                held[layer][:, :, : old.shape[2] - 1] = old[:, :, :-1]


def common_prefix(one: list[int], other: list[int]) -> int:
    """How many tokens two sequences begin with alike."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    # In slices, which is many times faster than one by one. Alike before `low`, different before `high`.
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
