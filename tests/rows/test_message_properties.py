"""Chains by messages, on random conversations.

1. What a call goes on from is what comparing it with every earlier call finds.
2. Every answer that is trained is trained in one row, where it stands.
3. Digests of histories do not depend on what was digested before.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.mdp import assemble
from lightning_sdk.mdp.message_links import SaidCall, find_message_parents
from lightning_sdk.mdp.messages import HistoryDigester, digest_histories
from lightning_sdk.mdp.text_sequences import build_text_rows
from support.record_factory import Tape
from support.row_factory import advantages_of, answered, talk

WORDS = st.sampled_from(["a", "b"])
# Which earlier conversation a call takes up (past the first: none), what is said, which tools, what is answered.
CALLS = st.lists(
    st.tuples(st.integers(0, 5), st.lists(WORDS, min_size=1, max_size=2), st.integers(0, 1), WORDS),
    max_size=9,
)
Drawn = list[tuple[int, list[str], int, str]]


def conversations(drawn: Drawn) -> list[SaidCall]:
    calls: list[SaidCall] = []
    for earlier, said, tools, answer in drawn:
        messages: list[dict[str, str]] = []
        if earlier < len(calls):
            taken = calls[-1 - earlier]
            messages = [*taken.observation["messages"], dict(taken.answers[0][1])]
        messages = [*messages, *({"role": "user", "content": word} for word in said)]
        observation: dict[str, Any] = {"messages": messages, "tools": [{"name": "t"}] * tools}
        calls.append(SaidCall("model", observation, [(0, {"role": "assistant", "content": answer})]))
    return calls


@settings(deadline=None, derandomize=True, max_examples=300)
@given(CALLS)
def test_the_parent_is_what_comparing_with_every_earlier_call_finds(drawn: Drawn) -> None:
    calls = conversations(drawn)
    expected = []
    for at, call in enumerate(calls):
        found = [
            (len(whole), earlier)
            for earlier in range(at)
            for whole in [[*calls[earlier].observation["messages"], calls[earlier].answers[0][1]]]
            if call.observation["messages"][: len(whole)] == whole
            and call.observation["tools"] == calls[earlier].observation["tools"]
        ]
        expected.append((max(found)[1], 0) if found else None)
    assert find_message_parents(calls) == expected


@settings(deadline=None, derandomize=True, max_examples=100)
@given(CALLS)
def test_digests_do_not_depend_on_what_was_digested_before(drawn: Drawn) -> None:
    digester = HistoryDigester(reasoning=True)
    for call in conversations(drawn):
        assert digester.digest(call) == digest_histories(call, reasoning=True)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(CALLS)
def test_every_trained_answer_is_trained_in_one_row_where_it_stands(drawn: Drawn) -> None:
    tape = Tape()
    calls = conversations(drawn)
    for at, call in enumerate(calls):
        content = str(call.answers[0][1]["content"])
        talk(tape, f"c{at}", call.observation["messages"], content, tools=call.observation["tools"])
    rows = build_text_rows(advantages_of(assemble(tape.records), trained=answered))
    marks = [(mark.call_id, row.messages, mark.index) for row in rows for mark in row.trained]
    assert sorted(call_id for call_id, _, _ in marks) == sorted(f"c{at}" for at in range(len(calls)))
    for call_id, messages, index in marks:
        call = calls[int(call_id[1:])]
        assert list(messages[:index]) == call.observation["messages"]
        assert messages[index] == call.answers[0][1]
