"""Which call a prompt goes on from, and which of several choices was used.

1. The parent is the call whose prompt and response ids a prompt starts with: the longest, whenever it was.
2. Only calls of one policy are compared, and only ids that passed the checks.
3. Of several choices, one that nothing extends or rewards by choice= is unused, or, where nobody can know,
   ambiguous.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.mdp import Episode, assemble
from lightning_sdk.mdp.prefixes import PrefixIndex
from support.record_factory import Tape, chat_body


def assembled(tape: Tape) -> Episode:
    (episode,) = assemble(tape.records)
    return episode


def parents(tape: Tape) -> dict[str, str | None]:
    return {each.call_id: each.parent_call_id for each in assembled(tape).transitions}


def drops(tape: Tape, call_id: str) -> list[str | None]:
    return [each.drop_reason for each in assembled(tape).transitions if each.call_id == call_id]


def test_interleaved_agents_have_a_chain_each() -> None:
    tape = Tape()
    tape.engine_call("a1", [1, 2], [3])
    tape.engine_call("b1", [1, 7], [8])
    tape.engine_call("a2", [1, 2, 3, 4], [5])
    tape.engine_call("b2", [1, 7, 8], [9])
    tape.engine_call("a3", [1, 2, 3, 4, 5, 6], [6])
    assert parents(tape) == {"a1": None, "b1": None, "a2": "a1", "b2": "b1", "a3": "a2"}


def test_one_token_off_is_no_parent() -> None:
    tape = Tape()
    tape.engine_call("a1", [1, 2], [3, 4])
    tape.engine_call("a2", [1, 2, 3, 5], [6])
    tape.engine_call("a3", [1, 2, 3], [6])
    assert parents(tape) == {"a1": None, "a2": None, "a3": None}


def test_a_fork_has_two_children() -> None:
    tape = Tape()
    tape.engine_call("a1", [1], [2])
    tape.engine_call("b", [1, 2, 3], [4])
    tape.engine_call("c", [1, 2, 5], [6])
    assert parents(tape) == {"a1": None, "b": "a1", "c": "a1"}


def test_of_two_calls_with_the_same_ids_the_later_one_is_the_parent() -> None:
    tape = Tape()
    tape.engine_call("first", [1], [2])
    tape.engine_call("again", [1], [2])
    tape.engine_call("next", [1, 2, 3], [4])
    assert parents(tape)["next"] == "again"


def test_a_response_without_tokens_is_nobodys_parent() -> None:
    tape = Tape()
    tape.engine_call("empty", [1], [])
    tape.engine_call("again", [1], [2])
    assert parents(tape)["again"] is None


def test_calls_of_another_model_are_not_compared() -> None:
    tape = Tape()
    tape.engine_call("a1", [1], [2])
    body = chat_body("x", id="re", prompt_ids=[1, 2, 3], ids=[[4]])
    tape.call("a2", {**body, "model": "another"})
    assert parents(tape)["a2"] is None


def test_a_choice_that_a_later_call_extends_is_used_and_the_others_are_not() -> None:
    tape = Tape()
    tape.engine_call("many", [1], [2], [3], [4])
    tape.engine_call("next", [1, 3, 5], [6])
    assert drops(tape, "many") == ["unused_choice", None, "unused_choice"]
    assert parents(tape)["next"] == "many"


def test_a_choice_that_a_reward_names_is_used() -> None:
    tape = Tape()
    tape.engine_call("many", [1], [2], [3])
    tape.reward(1.0, "call", call="many", choice=0)
    assert drops(tape, "many") == [None, "unused_choice"]


def test_of_two_equal_choices_one_is_used() -> None:
    tape = Tape()
    tape.engine_call("many", [1], [2], [2])
    tape.engine_call("next", [1, 2, 3], [4])
    assert drops(tape, "many") == [None, "unused_choice"]


def test_without_ids_nobody_can_tell_which_choice_was_used() -> None:
    tape = Tape()
    tape.call("many", chat_body("a", "b"))
    assert drops(tape, "many") == ["ambiguous_choice", "ambiguous_choice"]
    tape.reward(1.0, "call", call="many", choice=1)
    assert drops(tape, "many") == ["ambiguous_choice", "no_token_ids"]


def test_a_later_call_without_ids_may_have_extended_any_choice() -> None:
    tape = Tape()
    tape.engine_call("many", [1], [2], [3])
    tape.call("later")
    assert drops(tape, "many") == ["ambiguous_choice", "ambiguous_choice"]


def test_the_choices_of_one_call_are_neighbours_with_one_step() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2], [3])
    tape.engine_call("b", [1, 2, 9], [4])
    told = [(each.step, each.call_id, each.choice, each.next_call_id) for each in assembled(tape).transitions]
    assert told == [(0, "a", 0, "b"), (0, "a", 1, "b"), (1, "b", 0, None)]


@settings(deadline=None, derandomize=True)
@given(
    kept=st.lists(st.binary(min_size=0, max_size=3).map(lambda data: data * 200), max_size=12),
    asked=st.binary(max_size=3).map(lambda data: data * 200),
    cut=st.integers(0, 600),
)
def test_the_index_finds_what_comparing_finds(kept: list[bytes], asked: bytes, cut: int) -> None:
    index: PrefixIndex[int] = PrefixIndex()
    sequences = [*kept, asked[:cut], asked[: cut // 2]]
    for at, sequence in enumerate(sequences):
        index.add(sequence, at)
    fitting = [(len(sequence), at) for at, sequence in enumerate(sequences) if asked.startswith(sequence)]
    assert index.find(asked) == max(fitting)[1]


@pytest.mark.parametrize("length", [63, 64, 65, 128, 1000])
def test_chains_are_found_at_any_length(length: int) -> None:
    tape = Tape()
    prompt = [at % 251 for at in range(length)]
    tape.engine_call("a", prompt, [7])
    tape.engine_call("b", [*prompt, 7], [8])
    tape.engine_call("c", [*prompt, 7, 8, 9], [8])
    expected: dict[str, Any] = {"a": None, "b": "a", "c": "b"}
    assert parents(tape) == expected
