"""Why a prompt does not start with the prompt and response that its messages go on from.

1. Same messages, other ids within the response: "retokenised".
2. Same messages, something put in or left out whole, or another rendering of what came before: "template".
3. Other messages: "edited_history".
4. What begins something new, or goes another way from the same history, is not broken.
"""

from __future__ import annotations

from support.record_factory import Tape
from support.row_factory import breaks_of, forest_of, talk

END = 99


def test_an_unbroken_conversation_has_no_break() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2, END])
    talk(tape, "b", ["q", "cat", "more"], "dog", [1, 2, END, 3], [4, END])
    assert breaks_of(tape) == {}


def test_other_ids_for_the_same_answer_are_retokenised() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [20, 21, END])
    talk(tape, "b", ["q", "cat", "more"], "dog", [1, 22, END, 3], [4, END])
    assert breaks_of(tape) == {"b": "retokenised"}


def test_a_last_token_that_merges_with_what_follows_is_retokenised() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "ca", [1], [20, 21], finish_reason="length")
    talk(tape, "b", ["q", "ca", "more"], "dog", [1, 20, 22, 3], [4, END])
    assert breaks_of(tape) == {"b": "retokenised"}


def test_a_lost_end_token_is_the_templates() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2, END])
    talk(tape, "b", ["q", "cat", "more"], "dog", [1, 2, 70, 3], [4, END])
    assert breaks_of(tape) == {"b": "template"}


def test_reasoning_that_the_template_drops_is_the_templates() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "<think>hm</think>cat", [1], [60, 61, 62, 2, 5, END])
    talk(tape, "b", ["q", "<think>hm</think>cat", "more"], "dog", [1, 2, 5, END, 70, 3], [4, END])
    assert breaks_of(tape) == {"b": "template"}


def test_reasoning_that_the_client_drops_is_the_templates() -> None:
    tape = Tape()
    answer = {"role": "assistant", "content": "cat", "reasoning_content": "hm"}
    talk(tape, "a", ["q"], answer, [1], [60, 61, 62, 2, END])
    talk(tape, "b", ["q", "cat", "more"], "dog", [1, 80, END, 3], [4, END])
    assert breaks_of(tape) == {"b": "template"}


def test_text_that_the_template_puts_in_is_the_templates() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2, 5, END])
    talk(tape, "b", ["q", "cat", "more"], "dog", [1, 60, 61, 2, 5, 70, 3], [4, END])
    assert breaks_of(tape) == {"b": "template"}


def test_another_rendering_of_the_earlier_prompt_is_the_templates() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1, 7], [2, END])
    talk(tape, "b", ["q", "cat", "more"], "dog", [1, 8, 2, END, 3], [4, END])
    assert breaks_of(tape) == {"b": "template"}


def test_where_the_earlier_prompt_differs_already_the_response_is_not_looked_at() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1, 7, 8], [2, 5, END])
    talk(tape, "b", ["q", "cat", "more"], "dog", [1, 9, 22, END, 3], [4, END])
    assert breaks_of(tape) == {"b": "template"}


def test_a_rewritten_answer_is_an_edited_history() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2, END])
    talk(tape, "b", ["q", "Cat!", "more"], "dog", [1, 30, END, 3], [4, END])
    assert breaks_of(tape) == {"b": "edited_history"}


def test_turns_left_out_are_an_edited_history() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2])
    talk(tape, "b", ["q", "cat", "r"], "dog", [1, 2, 3], [4])
    talk(tape, "c", ["summary", "dog", "s"], "emu", [50, 4, 5], [6])
    assert breaks_of(tape) == {"c": "edited_history"}


def test_other_tools_are_an_edited_history() -> None:
    tape = Tape()
    tools = [{"type": "function", "function": {"name": "search"}}]
    talk(tape, "a", ["q"], "cat", [1], [2], tools=tools)
    talk(tape, "b", ["q", "cat", "more"], "dog", [9, 2, 3], [4])
    assert breaks_of(tape) == {"b": "edited_history"}


def test_a_break_late_in_a_conversation_counts_although_its_beginning_is_a_parent() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2])
    talk(tape, "b", ["q", "cat", "r"], "dog", [1, 2, 3], [40, 41, END])
    talk(tape, "c", ["q", "cat", "r", "dog", "s"], "emu", [1, 2, 3, 42, END, 5], [6])
    forest = forest_of(tape)
    assert forest.parents == (None, 0, 0)
    assert breaks_of(tape) == {"c": "retokenised"}
    assert forest.count_breaks() == {"retokenised": 1}


def test_a_call_may_be_the_first_to_extend_one_and_yet_go_on_from_another() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2])
    talk(tape, "b", ["q", "cat", "r"], "dog", [80, 2, 3], [4])
    talk(tape, "c", ["q", "cat", "r", "dog", "s"], "emu", [1, 2, 3, 4, 5], [6])
    assert forest_of(tape).parents == (None, None, 0)
    assert breaks_of(tape) == {"b": "template", "c": "template"}


def test_an_answer_rewritten_late_counts_too() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2])
    talk(tape, "b", ["q", "cat", "r"], "dog", [1, 2, 3], [4])
    talk(tape, "c", ["q", "cat", "r", "DOG", "s"], "emu", [1, 2, 3, 44, 5], [6])
    assert breaks_of(tape) == {"c": "edited_history"}


def test_another_way_from_the_same_history_is_not_broken() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2])
    talk(tape, "b", ["q", "cat", "r"], "dog", [1, 2, 3], [4])
    talk(tape, "c", ["q", "cat", "s"], "emu", [1, 2, 5], [6])
    assert breaks_of(tape) == {}


def test_parallel_samples_and_new_conversations_are_not_broken() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2])
    talk(tape, "again", ["q"], "dog", [1], [3])
    talk(tape, "new", ["r"], "emu", [7], [8])
    talk(tape, "examples", ["r", "example", "s"], "fox", [7, 9, 10], [11])
    assert breaks_of(tape) == {"examples": "edited_history"}  # what was asked in "new", with another answer
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2])
    talk(tape, "examples", ["r", "example", "s"], "fox", [7, 9, 10], [11])
    assert breaks_of(tape) == {}


def test_each_call_is_counted_once_however_many_choices_it_has() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [20, 21, END])
    tape.engine_call(
        "b",
        [1, 22, END, 3],
        [4],
        [5],
        request={
            "model": "tiny",
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "cat"},
                {"role": "user", "content": "more"},
            ],
        },
    )
    assert forest_of(tape).count_breaks() == {"retokenised": 1}
