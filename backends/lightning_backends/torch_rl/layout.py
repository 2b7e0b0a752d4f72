"""Rows into forward passes: a packed tree of tokens, in which what rows begin with alike stands once.

The tokens of a pass are the nodes of a forest in preorder, so those that come after a token on some row are a run
that starts with it: `[i, end_i)`. Token j sees token i where i <= j < end_i, which is the whole mask:

    rows   a b c d        place   0 1 2 3 4 5
           a b x          token   a b c d x q
           q              end     5 5 4 4 5 6      position 0 1 2 3 2 0

Rows that share nothing are trees of their own: the same mask then parts them. Axes: T tokens of a pass, L of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.packing import pack as pack_bins

Ids = NDArray[np.int32]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The tokens of one forward pass.

    Attributes:
        token_T, position_T, end_T: int64, see above.
        path_L: for each row, in the order given, where each of its tokens stands in the pass.
        is_chain: one row, or several of which each begins the next: plain causal attention is enough.
    """

    token_T: Places
    position_T: Places
    end_T: Places
    path_L: tuple[Places, ...]

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.token_T)

    @property
    def is_chain(self) -> bool:
        """Whether every token sees all before it."""
        return bool(np.all(self.end_T == self.tokens))


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass: indices of rows, in the order in which they are laid out, and its tree."""

    rows: tuple[int, ...]
    tree: Tree


def build_tree(rows: Sequence[Ids], *, share_prefixes: bool) -> Tree:
    """Lay rows out in one pass.

    With `share_prefixes`, those that begin alike must be neighbours: `plan` sorts them.
    """
    tokens: list[Ids] = []
    positions: list[Places] = []
    ends: list[Places] = []
    paths: list[Places] = []
    path = np.empty(0, dtype=np.int64)
    before: Ids = np.empty(0, dtype=np.int32)
    size = 0
    end_T = np.empty(sum(len(row) for row in rows), dtype=np.int64)
    for row in rows:
        shared = common_prefix(before, row) if share_prefixes else 0
        end_T[path[shared:]] = size
        new = np.arange(size, size + len(row) - shared, dtype=np.int64)
        path = np.concatenate([path[:shared], new])
        tokens.append(row[shared:])
        positions.append(np.arange(shared, len(row), dtype=np.int64))
        paths.append(path)
        size += len(new)
        before = row
    end_T[path] = size
    ends.append(end_T[:size])
    return Tree(
        token_T=np.concatenate(tokens).astype(np.int64),
        position_T=np.concatenate(positions),
        end_T=np.concatenate(ends),
        path_L=tuple(paths),
    )


def plan(
    rows: Sequence[Ids], *, budget: int | None, share_prefixes: bool, plain_length: int | None = None
) -> list[Pass]:
    """Part rows into forward passes of at most `budget` tokens.

    Rows are sorted by their tokens, so that those that begin alike are neighbours, and cut into families of at most
    `budget` tokens; families are packed, the longest first. The same rows give the same passes.

    Args:
        rows: what the model reads, each at least one token.
        budget: None: each row in a pass of its own. A row that is longer has a pass of its own.
        share_prefixes: whether what rows begin with alike stands once.
        plain_length: rows longer than this have a pass of their own too: beyond it the model's attention is not
            what a mask over trees says (a sliding window).
    """
    alone = [
        at
        for at, row in enumerate(rows)
        if budget is None or len(row) > budget or (plain_length is not None and len(row) > plain_length)
    ]
    passes: list[tuple[int, ...]] = [(at,) for at in alone]
    if budget is not None:
        lonely = set(alone)
        others = [at for at in range(len(rows)) if at not in lonely]
        if share_prefixes:
            others.sort(key=lambda at: (rows[at].astype(">u4").tobytes(), at))
        families, sizes = _families(rows, others, budget, share_prefixes)
        # In each pass in the order of the tokens again: neighbouring families may begin alike.
        passes.extend(
            tuple(at for family in sorted(members) for at in families[family])
            for members in pack_bins(sizes, budget)
        )
    return [
        Pass(members, build_tree([rows[at] for at in members], share_prefixes=share_prefixes))
        for members in passes
    ]


def common_prefix(one: Ids, other: Ids) -> int:
    """How many tokens two rows begin with alike."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if differing.size else length


def _families(
    rows: Sequence[Ids], order: Sequence[int], budget: int, share_prefixes: bool
) -> tuple[list[list[int]], list[int]]:
    """Neighbours that share something, cut where the budget ends; and the tokens of each family."""
    families: list[list[int]] = []
    sizes: list[int] = []
    for at in order:
        shared = common_prefix(rows[families[-1][-1]], rows[at]) if share_prefixes and families else 0
        added = len(rows[at]) - shared
        if shared and sizes[-1] + added <= budget:
            families[-1].append(at)
            sizes[-1] += added
        else:
            families.append([at])
            sizes.append(len(rows[at]))
    return families, sizes
