"""Rows as packed trees.

1. A token sees what is before it on its row, and nothing else.
2. What rows begin with alike stands once; every row can be read off its path.
3. No pass has more tokens than the budget, but for a row that is longer alone.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_backends.torch_rl.layout import Pass, Tree, build_tree, plan


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def seen(tree: Tree, place: int) -> set[int]:
    return {at for at in range(tree.tokens) if at <= place < tree.end_T[at]}


def test_the_example_of_the_module() -> None:
    # a b c d, a b x, q
    tree = build_tree([ids(1, 2, 3, 4), ids(1, 2, 9), ids(7)], share_prefixes=True)
    assert tree.token_T.tolist() == [1, 2, 3, 4, 9, 7]
    assert tree.end_T.tolist() == [5, 5, 4, 4, 5, 6]
    assert tree.position_T.tolist() == [0, 1, 2, 3, 2, 0]
    assert [path.tolist() for path in tree.path_L] == [[0, 1, 2, 3], [0, 1, 4], [5]]
    assert not tree.is_chain


def test_a_row_that_begins_another_takes_no_room() -> None:
    tree = build_tree([ids(1, 2), ids(1, 2, 3)], share_prefixes=True)
    assert tree.token_T.tolist() == [1, 2, 3]
    assert tree.is_chain


def test_without_sharing_equal_rows_stand_apart() -> None:
    tree = build_tree([ids(1, 2), ids(1, 2)], share_prefixes=False)
    assert tree.token_T.tolist() == [1, 2, 1, 2]
    assert seen(tree, 3) == {2, 3}


ROWS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(lambda row: ids(*row)), min_size=1, max_size=12
)


@given(rows=ROWS, budget=st.integers(1, 30), share=st.booleans())
def test_every_token_sees_its_own_past_alone(rows: list[np.ndarray], budget: int, share: bool) -> None:
    passes = plan(rows, budget=budget, share_prefixes=share)
    assert sorted(at for each in passes for at in each.rows) == list(range(len(rows)))
    for each in passes:
        for at, path in zip(each.rows, each.tree.path_L, strict=True):
            assert each.tree.token_T[path].tolist() == rows[at].tolist()
            assert each.tree.position_T[path].tolist() == list(range(len(rows[at])))
            for depth, place in enumerate(path.tolist()):
                assert seen(each.tree, place) == set(path[: depth + 1].tolist())
        assert each.tree.tokens <= budget or len(each.rows) == 1
        if share:
            tokens = {
                tuple(rows[at][: depth + 1].tolist()) for at in each.rows for depth in range(len(rows[at]))
            }
            assert each.tree.tokens == len(tokens)
        else:
            assert each.tree.tokens == sum(len(rows[at]) for at in each.rows)


@given(rows=ROWS)
def test_the_same_rows_give_the_same_passes(rows: list[np.ndarray]) -> None:
    first, second = (plan(rows, budget=20, share_prefixes=True) for _ in range(2))
    assert [each.rows for each in first] == [each.rows for each in second]


@pytest.mark.parametrize(("budget", "plain_length"), [(None, None), (100, 3)])
def test_rows_that_must_be_alone_are(budget: int | None, plain_length: int | None) -> None:
    rows = [ids(1, 2, 3, 4), ids(1, 2, 3, 4)]
    passes: list[Pass] = plan(rows, budget=budget, share_prefixes=False, plain_length=plain_length)
    assert [each.rows for each in passes] == [(0,), (1,)]
    assert all(each.tree.is_chain for each in passes)
