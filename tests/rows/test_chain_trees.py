"""Which calls of a rollout make one sequence, where token ids are known.

1. A prompt that starts with an earlier prompt and response, exactly, goes on from it: the longest, whenever it
   was, of the same policy or model.
2. Sampled tokens that end a turn belong to the response; what a template puts between is part of the prompt.
3. Calls with the same prompt are siblings.
4. At a fork the first child in call order, then by choice, has the parent's tokens as its own; the others carry
   them as context. Only children that lead to something trained count.
"""

from __future__ import annotations

import pytest

from lightning_sdk.mdp import Transition
from lightning_sdk.mdp.chains import build_chains
from support.record_factory import Tape, chat_body
from support.row_factory import chains_of, transitions_of

END = 99  # the token that ends a turn


def test_the_turns_of_a_conversation_are_one_chain() -> None:
    tape = Tape()
    tape.engine_call("a", [1, 2], [3, END])
    tape.engine_call("b", [1, 2, 3, END, 4], [5, END])
    tape.engine_call("c", [1, 2, 3, END, 4, 5, END, 6], [7, END])
    assert chains_of(tape) == [([], ["a", "b", "c"])]


def test_template_text_between_turns_breaks_nothing() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2, END])
    tape.engine_call("b", [1, 2, END, 70, 71, 72], [3, END])
    assert chains_of(tape) == [([], ["a", "b"])]


def test_a_prompt_that_lacks_the_sampled_end_token_goes_on_from_nothing() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2, END])
    tape.engine_call("b", [1, 2, 70], [3, END])
    assert chains_of(tape) == [([], ["a"]), ([], ["b"])]


def test_a_prompt_that_adds_nothing_goes_on_all_the_same() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    tape.engine_call("b", [1, 2], [3])
    assert chains_of(tape) == [([], ["a", "b"])]


def test_interleaved_agents_have_a_chain_each() -> None:
    tape = Tape()
    tape.engine_call("a1", [1], [2])
    tape.engine_call("b1", [5], [6])
    tape.engine_call("a2", [1, 2, 3], [4])
    tape.engine_call("b2", [5, 6, 7], [8])
    tape.engine_call("a3", [1, 2, 3, 4], [9])
    assert chains_of(tape) == [([], ["a1", "a2", "a3"]), ([], ["b1", "b2"])]


def test_a_sub_agent_between_two_turns_has_a_chain_of_its_own() -> None:
    tape = Tape()
    tape.engine_call("main1", [1], [2])
    tape.engine_call("sub1", [50], [51])
    tape.engine_call("sub2", [50, 51, 52], [53])
    tape.engine_call("main2", [1, 2, 53], [3])
    assert chains_of(tape) == [([], ["main1", "main2"]), ([], ["sub1", "sub2"])]


def test_parallel_samples_of_one_prompt_are_siblings() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    tape.engine_call("b", [1], [3])
    tape.engine_call("c", [1], [3])
    assert chains_of(tape) == [([], ["a"]), ([], ["b"]), ([], ["c"])]


def test_at_a_fork_the_first_child_trains_the_parent() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    tape.engine_call("b", [1, 2, 3], [4])
    tape.engine_call("c", [1, 2, 5], [6])
    tape.engine_call("b2", [1, 2, 3, 4, 7], [8])
    assert chains_of(tape) == [([], ["a", "b", "b2"]), (["a"], ["c"])]


def test_a_fork_of_a_fork_carries_all_that_came_before() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    tape.engine_call("b", [1, 2], [3])
    tape.engine_call("c", [1, 2, 9], [4])
    tape.engine_call("d", [1, 2, 9, 4, 5], [6])
    tape.engine_call("e", [1, 2, 9, 4, 7], [8])
    assert chains_of(tape) == [([], ["a", "b"]), (["a"], ["c", "d"]), (["a", "c"], ["e"])]


def test_a_child_that_leads_to_nothing_trained_does_not_count_at_a_fork() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    tape.engine_call("b", [1, 2, 3], [4])
    tape.engine_call("c", [1, 2, 5], [6])
    assert chains_of(tape, lambda each: each.call_id != "b") == [([], ["a", "c"])]


def test_an_untrained_call_between_two_trained_ones_does_not_part_them() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    tape.engine_call("b", [1, 2, 3], [4])
    tape.engine_call("c", [1, 2, 3, 4], [5])
    assert chains_of(tape, lambda each: each.call_id != "b") == [([], ["a", "b", "c"])]


def test_a_chain_ends_with_what_is_trained() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    tape.engine_call("b", [1, 2, 3], [4])
    assert chains_of(tape, lambda each: each.call_id == "a") == [([], ["a"])]
    assert chains_of(tape, lambda each: False) == []


def test_of_the_best_of_n_the_extended_choice_goes_on() -> None:
    tape = Tape()
    tape.engine_call("many", [1], [2], [3], [4])
    tape.engine_call("next", [1, 3, 5], [6])
    assert chains_of(tape) == [([], ["many.1", "next"])]


def test_all_choices_of_a_call_may_be_gone_on_from() -> None:
    tape = Tape()
    tape.engine_call("many", [1], [2], [3])
    tape.engine_call("x", [1, 3, 5], [6])
    tape.engine_call("y", [1, 2, 5], [6])
    assert chains_of(tape) == [([], ["many", "y"]), ([], ["many.1", "x"])]


def test_the_choices_of_a_child_are_branches_by_choice() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    tape.engine_call("many", [1, 2], [3], [4])
    tape.engine_call("x", [1, 2, 4], [5])
    tape.engine_call("y", [1, 2, 3], [6])
    assert chains_of(tape) == [([], ["a", "many", "y"]), (["a"], ["many.1", "x"])]


def test_a_rewritten_history_begins_a_chain() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2, 3])
    tape.engine_call("b", [1, 2, 8, 4], [5])
    tape.engine_call("c", [1, 2, 8, 4, 5, 6], [7])
    assert chains_of(tape) == [([], ["a"]), ([], ["b", "c"])]


def test_a_compacted_history_begins_a_chain_and_an_uncompacted_agent_goes_on() -> None:
    tape = Tape()
    tape.engine_call("a", [1, 2], [3])
    tape.engine_call("compacted", [1, 40], [5])
    tape.engine_call("b", [1, 2, 3, 4], [6])
    assert chains_of(tape) == [([], ["a", "b"]), ([], ["compacted"])]


def test_dropped_reasoning_begins_a_chain_at_every_turn() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [60, 61, 2, END])  # 60 61: reasoning
    tape.engine_call("b", [1, 2, END, 3], [62, 4, END])
    tape.engine_call("c", [1, 2, END, 3, 4, END, 5], [63, 6, END])
    assert chains_of(tape) == [([], ["a"]), ([], ["b"]), ([], ["c"])]


def test_history_that_is_edited_late_forks_where_it_was_still_the_same() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    tape.engine_call("b", [1, 2, 3], [4])
    tape.engine_call("c", [1, 2, 3, 8], [5])
    assert chains_of(tape) == [([], ["a", "b"]), (["a"], ["c"])]


def test_the_longest_of_several_that_a_prompt_starts_with_is_its_parent() -> None:
    tape = Tape()
    tape.engine_call("long", [1], [2, 3, 4])
    tape.engine_call("short", [1], [2])
    tape.engine_call("next", [1, 2, 3, 4, 5], [6])
    assert chains_of(tape) == [([], ["long", "next"]), ([], ["short"])]


def test_calls_of_different_models_share_nothing() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    body = chat_body("x", id="re_b", prompt_ids=[1, 2, 3], ids=[[4]])
    tape.call("b", {**body, "model": "another"})
    assert chains_of(tape) == [([], ["a"]), ([], ["b"])]


def test_a_failed_call_and_an_empty_response_take_no_part() -> None:
    tape = Tape()
    tape.call("failed", b"", outcome="error")
    tape.engine_call("empty", [1], [])
    tape.engine_call("a", [1], [2])
    assert chains_of(tape, lambda each: True) == [([], ["a"])]


def test_a_chain_of_hundreds_of_turns_is_one_chain() -> None:
    tape = Tape()
    history: list[int] = []
    for turn in range(400):
        history += [turn, 1]
        tape.engine_call(f"c{turn}", history, [2, END])
        history += [2, END]
    assert chains_of(tape) == [([], [f"c{turn}" for turn in range(400)])]


def test_transitions_of_two_rollouts_are_refused() -> None:
    one, other = Tape(), Tape(rollout="ro_2")
    one.engine_call("a", [1], [2])
    other.engine_call("b", [1, 2], [3])
    mixed: list[Transition] = [*transitions_of(one), *transitions_of(other)]
    with pytest.raises(ValueError, match="one attempt of one rollout"):
        build_chains(mixed)
    with pytest.raises(ValueError, match="1 truth values for 0"):
        build_chains([]).lay_out([True])
