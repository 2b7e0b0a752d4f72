"""Which failed calls were made again.

1. Same scope, process, API and request; the former failed or was given up and was over before: superseded_retry.
2. A call repeats one other: where fewer were made again than had failed, nobody can tell which.
3. No retries: parallel identical prompts, best of n, two sub-agents, another request, what was extended or answered.
4. A superseded call is no decision, and counted.
5. Of random rollouts too each superseded call has a later one of its own, in any order of arrival.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.mdp import assemble, group_episodes
from lightning_sdk.mdp.advantages import compute_advantages
from lightning_sdk.records import Record, SourcedRecord
from support.record_factory import Tape, chat_body, chat_request

ASKED = chat_request("q")


def rollout() -> Tape:
    tape = Tape()
    tape.start()
    tape.open_scope("sc_1")
    return tape


def fail(tape: Tape, call_id: str, *, begun: Any = None, **fields: Any) -> Record:
    """A call that was answered 500, or what `fields` say."""
    options: dict[str, Any] = {"outcome": "error", "scope": "sc_1", "request": ASKED, "body": b"{}"}
    return tape.call(call_id, begun=begun, **{**options, **fields})


def answer(tape: Tape, call_id: str, **fields: Any) -> Record:
    options: dict[str, Any] = {"scope": "sc_1", "request": ASKED}
    return tape.call(call_id, **{**options, **fields})


def reasons(*tapes: Tape) -> dict[str, str | None]:
    (episode,) = assemble(item for tape in tapes for item in tape.records)
    return {each.call_id: each.drop_reason for each in episode.transitions}


@pytest.mark.parametrize("outcome", ["error", "cancelled", "abandoned", "closed_early"])
def test_a_call_that_failed_and_was_made_again_is_superseded(outcome: str) -> None:
    tape = rollout()
    fail(tape, "first", outcome=outcome)
    answer(tape, "second")
    assert reasons(tape) == {"first": "superseded_retry", "second": "no_token_ids"}


def test_of_several_tries_all_but_the_last_are_superseded() -> None:
    tape = rollout()
    for name in ("first", "second", "third"):
        fail(tape, name)
    assert reasons(tape) == {"first": "superseded_retry", "second": "superseded_retry", "third": "error"}


def test_other_calls_in_between_do_not_matter() -> None:
    tape = rollout()
    fail(tape, "first")
    answer(tape, "other", request=chat_request("r"))
    answer(tape, "second")
    assert reasons(tape)["first"] == "superseded_retry"


def test_parallel_identical_prompts_are_no_retries_of_each_other() -> None:
    tape = rollout()
    one, two = tape.tick(), tape.tick()
    fail(tape, "one", begun=one)
    answer(tape, "two", begun=two)
    assert reasons(tape) == {"one": "error", "two": "no_token_ids"}


def test_parallel_samples_that_were_all_made_again_are_superseded() -> None:
    tape = rollout()
    one, two = tape.tick(), tape.tick()
    fail(tape, "one", begun=one)
    again_one = tape.tick()
    fail(tape, "two", begun=two)
    again_two = tape.tick()
    answer(tape, "one again", begun=again_one)
    answer(tape, "two again", begun=again_two)
    assert {name for name, reason in reasons(tape).items() if reason == "superseded_retry"} == {"one", "two"}


def test_which_of_two_failed_samples_was_made_again_cannot_be_known() -> None:
    tape = rollout()
    one, two = tape.tick(), tape.tick()
    fail(tape, "one", begun=one)
    fail(tape, "two", begun=two)
    answer(tape, "again")
    assert reasons(tape) == {"one": "error", "two": "error", "again": "no_token_ids"}


def test_a_retry_before_the_other_sample_failed_is_known() -> None:
    tape = rollout()
    one, two = tape.tick(), tape.tick()
    fail(tape, "one", begun=one)
    answer(tape, "again")
    fail(tape, "two", begun=two)
    assert reasons(tape) == {"one": "superseded_retry", "two": "error", "again": "no_token_ids"}


def test_best_of_n_one_after_the_other_repeats_nothing_that_was_answered() -> None:
    tape = rollout()
    for at in range(3):
        answer(tape, f"sample {at}")
    assert set(reasons(tape).values()) == {"no_token_ids"}


def test_an_empty_answer_is_an_answer() -> None:
    tape = rollout()
    answer(tape, "empty", body=chat_body(""))
    answer(tape, "again")
    assert reasons(tape)["empty"] == "empty_response"


def test_two_sub_agents_do_not_repeat_each_other() -> None:
    tape = rollout()
    tape.open_scope("sc_2", parent="sc_1")
    fail(tape, "one")
    answer(tape, "two", scope="sc_2")
    assert reasons(tape)["one"] == "error"


def test_another_process_does_not_repeat_it() -> None:
    parent = rollout()
    fail(parent, "one")
    child = Tape("child", second=parent.second)
    child.join(parent)
    answer(child, "two")
    assert reasons(parent, child)["one"] == "error"


@pytest.mark.parametrize(
    "changed", [{"request": chat_request("q", temperature=0.5)}, {"api": "responses"}, {"request": b""}]
)
def test_another_request_or_api_is_another_call(changed: dict[str, Any]) -> None:
    tape = rollout()
    fail(tape, "one", **({"request": b""} if changed.get("request") == b"" else {}))
    answer(tape, "two", **changed)
    assert reasons(tape)["one"] == "error"


def test_what_was_gone_on_from_was_no_failure_to_its_agent() -> None:
    tape = rollout()
    cut = chat_body("half", finish_reason="")
    cut["choices"][0]["finish_reason"] = None
    fail(tape, "half", body=cut, outcome="cancelled")
    answer(tape, "same again")
    assert reasons(tape)["half"] == "superseded_retry"
    answer(tape, "goes on", request=chat_request("q", "half", "r"))
    assert reasons(tape)["half"] == "cancelled"


def test_outside_a_rollout_nothing_belongs_together() -> None:
    tape = Tape(rollout="", group="")
    fail(tape, "one", scope="")
    answer(tape, "two", scope="")
    assert reasons(tape)["one"] == "error"


def test_a_superseded_call_is_no_decision_and_is_counted() -> None:
    tape = rollout()
    fail(tape, "first")
    tape.engine_call("second", [1, 2], [3], scope="sc_1", request=ASKED)
    tape.reward(1.0, scope="sc_1")
    tape.finish()
    result = compute_advantages(group_episodes(assemble(tape.records)), baseline="none")
    assert result.table.decision_C.tolist() == [False, True]
    assert result.reason_C == ("superseded_retry", None)
    assert result.counts["calls_superseded_retry"] == 1


Drawn = tuple[str, str, str, int]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sc_1", "sc_2"]),
            st.sampled_from(["q", "r"]),
            st.sampled_from(["ok", "error", "cancelled"]),
            st.integers(1, 4),  # how many later ones begin before it is over
        ),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_every_superseded_call_has_a_later_one_of_its_own_whatever_arrives_first(
    drawn: list[Drawn], random: Random
) -> None:
    records = drawn_rollout(drawn)
    (episode,) = assemble(records)
    told = {each.call_id: each for each in episode.transitions}
    found = [at for at in range(len(drawn)) if told[f"c{at}"].drop_reason == "superseded_retry"]
    assert all(drawn[at][2] != "ok" for at in found)
    free = set(range(len(drawn)))
    # The earliest that is over takes the earliest that may repeat it: if any assignment works, this one does.
    for at in sorted(found, key=lambda at: told[f"c{at}"].end_ns):
        later = [
            by
            for by in sorted(free)
            if drawn[by][:2] == drawn[at][:2] and told[f"c{by}"].start_ns > told[f"c{at}"].end_ns
        ]
        assert later
        free.remove(later[0])
    random.shuffle(records)
    (again,) = assemble(records)
    assert [each.drop_reason for each in again.transitions] == [
        each.drop_reason for each in episode.transitions
    ]


def drawn_rollout(drawn: list[Drawn]) -> list[SourcedRecord]:
    """A rollout in which call `at` is over when `lasting` later ones have begun."""
    tape = Tape()
    tape.start()
    under_way: list[tuple[int, int, tuple[int, int]]] = []
    for at, (*_, lasting) in enumerate(drawn):
        under_way.append((at + lasting, at, tape.tick()))
        for end in sorted(under_way):
            if end[0] <= at + 1:
                finish_drawn(tape, drawn, end)
                under_way.remove(end)
    for end in sorted(under_way):
        finish_drawn(tape, drawn, end)
    tape.finish()
    return tape.records


def finish_drawn(tape: Tape, drawn: list[Drawn], end: tuple[int, int, tuple[int, int]]) -> None:
    scope, asked, outcome, _ = drawn[end[1]]
    body = {} if outcome == "ok" else {"body": b"{}"}
    tape.second += 1
    tape.call(f"c{end[1]}", scope=scope, request=chat_request(asked), outcome=outcome, begun=end[2], **body)
