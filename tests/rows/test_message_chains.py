"""Which calls make one conversation, where no token ids are known.

1. Messages that begin with an earlier call's messages and its answer go on from it, if tools and the
   template's arguments are the same.
2. What a client may change of an answer without saying anything else is no difference: nulls, empty lists, the
   spelling of a tool's arguments, text in parts. Reasoning is one.
3. Such chains, and rows, are marked "text".
"""

from __future__ import annotations

from typing import Any

import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp import assemble
from lightning_sdk.mdp.sequences import build_rows
from lightning_sdk.mdp.text_sequences import build_text_rows
from support.record_factory import Tape, chat_body, chat_request
from support.row_factory import advantages_of, answered, chains_of, forest_of, talk


def test_the_turns_of_a_conversation_are_one_chain_of_text() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat")
    talk(tape, "other", ["x"], "fox")
    talk(tape, "b", ["q", "cat", "r"], "dog")
    assert chains_of(tape, answered) == [([], ["a", "b"]), ([], ["other"])]
    forest = forest_of(tape)
    assert {chain.fidelity for chain in forest.lay_out([True] * 3)} == {"text"}


def test_a_fork_is_laid_out_as_one_of_tokens_is() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat")
    talk(tape, "b", ["q", "cat", "r"], "dog")
    talk(tape, "c", ["q", "cat", "s"], "emu")
    assert chains_of(tape, answered) == [([], ["a", "b"]), (["a"], ["c"])]


def test_parallel_samples_are_siblings_and_the_latest_of_equal_answers_goes_on() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat")
    talk(tape, "b", ["q"], "cat")
    talk(tape, "c", ["q", "cat", "r"], "dog")
    assert chains_of(tape, answered) == [([], ["a"]), ([], ["b", "c"])]


def test_of_equal_choices_the_lowest_goes_on() -> None:
    tape = Tape()
    tape.call("many", chat_body("cat", "cat"), request=chat_request("q"))
    talk(tape, "next", ["q", "cat", "r"], "dog")
    assert chains_of(tape, answered) == [([], ["many", "next"]), ([], ["many.1"])]


def test_a_tool_call_sent_back_in_another_spelling_goes_on() -> None:
    tape = Tape()
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "tool_calls": [
            {
                "index": 0,
                "id": "t",
                "type": "function",
                "function": {"name": "f", "arguments": '{"a": 1, "b": 2}'},
            }
        ],
    }
    copy = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"b":2,"a":1}'}}
        ],
    }
    result = {"role": "tool", "tool_call_id": "t", "content": [{"type": "text", "text": "3"}]}
    talk(tape, "a", ["q"], answer)
    talk(tape, "b", ["q", copy, result], "done")
    talk(tape, "c", ["q", copy, {**result, "content": "3"}, {"role": "assistant", "content": "done"}], "more")
    assert chains_of(tape, answered) == [([], ["a", "b", "c"])]


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"chat_template_kwargs": {"thinking": True}},
    ],
)
def test_with_other_tools_or_template_arguments_nothing_goes_on(change: dict[str, Any]) -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat")
    talk(tape, "b", ["q", "cat", "r"], "dog", **change)
    assert chains_of(tape, answered) == [([], ["a"]), ([], ["b"])]


def test_an_answer_sent_back_without_its_reasoning_does_not_go_on() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], {"role": "assistant", "content": "cat", "reasoning_content": "hm"})
    talk(tape, "b", ["q", "cat", "r"], "dog")
    assert chains_of(tape, answered) == [([], ["a"]), ([], ["b"])]


def test_a_call_without_ids_is_no_part_of_a_chain_of_tokens() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], "cat", [1], [2])
    talk(tape, "b", ["q", "cat", "r"], "dog")
    talk(tape, "c", ["q", "cat", "r", "dog", "s"], "emu", [1, 2, 3, 4, 5], [6])
    assert chains_of(tape, answered) == [([], ["a", "c"]), ([], ["b"])]


def test_a_row_of_text_says_which_answers_are_trained() -> None:
    tape = Tape()
    talk(tape, "a", ["q"], {"role": "assistant", "content": "cat", "refusal": None})
    talk(tape, "b", ["q", "cat", "r"], "dog")
    talk(tape, "c", ["q", "cat", "s"], "emu")
    advantages = advantages_of(
        assemble(tape.records), values={"a": 0.5, "b": 2.0, "c": -1.0}, trained=answered
    )
    first, second = build_text_rows(advantages)
    assert first.fidelity == "text"
    assert [message["content"] for message in first.messages] == ["q", "cat", "r", "dog"]
    assert [(each.index, each.call_id, each.advantage) for each in first.trained] == [
        (1, "a", 0.5),
        (3, "b", 2.0),
    ]
    assert first.messages[1] == {"role": "assistant", "content": "cat", "refusal": None}
    assert [message["content"] for message in second.messages] == ["q", "cat", "s", "emu"]
    assert [(each.index, each.call_id, each.advantage) for each in second.trained] == [(3, "c", -1.0)]


def test_text_is_never_taken_for_tokens_nor_tokens_for_text() -> None:
    tape = Tape()
    talk(tape, "text", ["q"], "cat")
    with pytest.raises(ConfigError, match=r"1 of the calls in the loss .'text'.*require_engine"):
        build_rows(advantages_of(assemble(tape.records), trained=answered))
    tape = Tape()
    talk(tape, "tokens", ["q"], "cat", [1], [2])
    with pytest.raises(ConfigError, match="build_rows"):
        build_text_rows(advantages_of(assemble(tape.records), trained=answered))
