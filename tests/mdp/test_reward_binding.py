"""Which call a reward belongs to, and what rewards add up to.

1. bound=call: the named call (call id or response id); the reward's scope is that call's.
2. bound=scope: the recorded call, else the latest of the scope's subtree that had finished.
3. bound=context and bound=rollout: the rollout's last call. bound=none, or no such call: the return only.
4. Rewards add up; one with the id of an earlier one replaces it.
5. r_t, return, return-to-go are over all calls, in call order; null while there is no reward at all.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.mdp import Episode, assemble, decode_rewards
from support.record_factory import Tape, chat_body


def assembled(*tapes: Tape) -> Episode:
    (episode,) = assemble(record for tape in tapes for record in tape.records)
    return episode


def rewards(*tapes: Tape) -> dict[str, float | None]:
    return {each.call_id: each.reward for each in assembled(*tapes).transitions}


def test_rewards_add_up_to_returns_in_call_order() -> None:
    tape = Tape()
    tape.start()
    tape.call("a")
    tape.reward(1.0, "call", call="a")
    tape.call("b")
    tape.call("c")
    tape.reward(2.0, "call", call="c")
    tape.reward(0.5, "call", call="c")
    episode = assembled(tape)
    # r = 1, 0, 2 + 0.5; return-to-go from the end: 2.5, 2.5 + 0, 2.5 + 0 + 1.
    assert [each.reward for each in episode.transitions] == [1.0, 0.0, 2.5]
    assert [each.return_to_go for each in episode.transitions] == [3.5, 2.5, 2.5]
    assert episode.return_ == 3.5


def test_a_rollout_without_any_reward_has_null_not_zero() -> None:
    tape = Tape()
    tape.call("a")
    episode = assembled(tape)
    (transition,) = episode.transitions
    assert (transition.reward, transition.return_to_go, episode.return_) == (None, None, None)
    assert (transition.reward_components, transition.reward_scopes) == (None, None)


def test_components_and_scopes_are_kept_apart() -> None:
    tape = Tape()
    tape.open_scope("outer")
    tape.open_scope("inner", parent="outer")
    tape.call("a", scope="inner")
    tape.reward({"format": 0.25, "answer": 1.0}, scope="inner", call="a")
    tape.close_scope("inner")
    tape.reward({"answer": 0.5}, scope="outer", call="a")
    tape.close_scope("outer")
    tape.reward({"late": -1.0}, "context")
    tape.call("b")
    a, b = assembled(tape).transitions
    # context goes to the last call, which is b.
    assert a.reward_components == {"format": 0.25, "answer": 1.5}
    assert a.reward_scopes == {"inner": 1.25, "outer": 0.5}
    assert (b.reward_components, b.reward_scopes) == ({"late": -1.0}, {"": -1.0})


def test_a_named_call_gives_the_reward_its_scope() -> None:
    tape = Tape()
    tape.open_scope("outer")
    tape.open_scope("inner", parent="outer")
    tape.call("a", scope="inner")
    tape.close_scope("inner")
    tape.reward(1.0, "call", call="a", scope="outer")
    (transition,) = assembled(tape).transitions
    assert transition.reward_scopes == {"inner": 1.0}


def test_a_call_can_be_named_by_its_response_id() -> None:
    tape = Tape()
    tape.call("a", chat_body("x", id="chatcmpl-7"))
    tape.call("b", chat_body("y", id="chatcmpl-8"))
    tape.reward(1.0, "call", call="chatcmpl-7")
    assert rewards(tape) == {"a": 1.0, "b": 0.0}


def outside(name: str, value: float = 1.0) -> Tape:
    """A reward of a producer that knows a call or response id and no rollout."""
    judge = Tape("judge", rollout="", group="", attempt=0, second=100)
    judge.reward(value, "call", call=name)
    return judge


def three_rollouts(**ids: str) -> list[Tape]:
    tapes = [Tape(f"p{at}", rollout=f"ro_{at}", second=10 * at) for at in range(3)]
    for at, tape in enumerate(tapes):
        tape.start()
        tape.call(f"ca_{at}", chat_body("x", id=ids.get(f"r{at}", f"re_{at}")))
        tape.finish()
    return tapes


@pytest.mark.parametrize("name", ["ca_1", "re_1"])
def test_a_reward_that_names_no_rollout_finds_that_of_its_call(name: str) -> None:
    tapes = [outside(name), *three_rollouts()]
    episodes = assemble(record for tape in tapes for record in tape.records)
    assert [each.return_ for each in episodes] == [None, 1.0, None]
    assert [(each.bound, each.call_id) for each in episodes[1].rewards] == [("call", "ca_1")]
    assert [each.complete for each in episodes] == [True, True, True]


@pytest.mark.parametrize(("name", "ids"), [("re_9", {}), ("", {}), ("same", {"r0": "same", "r2": "same"})])
def test_a_reward_whose_call_nobody_knows_goes_nowhere(name: str, ids: dict[str, str]) -> None:
    tapes = [outside(name), *three_rollouts(**ids)]
    episodes = assemble(record for tape in tapes for record in tape.records)
    assert [each.return_ for each in episodes] == [None, None, None]


def test_a_call_id_is_looked_for_before_a_response_id() -> None:
    tapes = [outside("ca_1"), *three_rollouts(r0="ca_1")]
    episodes = assemble(record for tape in tapes for record in tape.records)
    assert [each.return_ for each in episodes] == [None, 1.0, None]


def test_a_reward_of_a_call_of_an_attempt_that_was_given_up_is_not_of_the_final_one() -> None:
    tape = Tape()
    tape.call("first", chat_body("x", id="re_first"))
    tape.attempt = 2
    tape.call("second", chat_body("x", id="re_second"))
    assert assembled(tape, outside("re_first")).return_ is None
    assert assembled(tape, outside("re_second")).return_ == 1.0


def test_a_repeated_response_id_means_the_latest_that_was_there() -> None:
    tape = Tape()
    for call_id in ("a", "b"):
        tape.call(call_id, chat_body("x", id="same"))
    tape.reward(1.0, "call", call="same")
    tape.call("c", chat_body("x", id="same"))
    assert rewards(tape) == {"a": 0.0, "b": 1.0, "c": 0.0}


def test_without_a_recorded_call_the_latest_finished_of_the_subtree_is_found() -> None:
    tape = Tape()
    tape.open_scope("outer")
    tape.open_scope("inner", parent="outer")
    pending = tape.tick()
    tape.call("inside", scope="inner")
    tape.close_scope("inner")
    tape.open_scope("other")
    tape.call("elsewhere", scope="other")
    tape.reward(1.0, scope="outer")
    # Sent before the reward, but not finished by then.
    tape.call("pending", scope="outer", begun=pending)
    assert rewards(tape) == {"pending": 0.0, "inside": 1.0, "elsewhere": 0.0}


def test_of_two_overlapping_calls_the_one_that_finished_last_is_found() -> None:
    tape = Tape()
    slow = tape.tick()
    tape.call("quick")
    tape.call("slow", begun=slow)
    tape.reward(1.0)
    assert rewards(tape) == {"slow": 1.0, "quick": 0.0}


def test_a_call_of_another_process_is_found_by_its_end() -> None:
    parent = Tape("parent")
    parent.start()
    parent.open_scope("outer")
    child = Tape("child", second=10)
    child.join(parent)
    child.call("early", scope="outer")
    child.second = 100
    child.call("late", scope="outer")
    parent.second = 50
    parent.reward(1.0, scope="outer")
    assert rewards(parent, child) == {"early": 1.0, "late": 0.0}


def test_the_recorded_call_is_believed() -> None:
    tape = Tape()
    tape.call("a")
    tape.call("b")
    tape.reward(1.0, "scope", call="a")
    assert rewards(tape) == {"a": 1.0, "b": 0.0}


def test_a_failed_call_takes_no_reward() -> None:
    tape = Tape()
    tape.call("answered")
    tape.call("failed", b"", outcome="error")
    tape.reward(1.0, "scope", call="failed")
    tape.reward(2.0, "rollout")
    assert rewards(tape) == {"answered": 3.0, "failed": 0.0}


def test_a_late_reward_from_another_process_goes_to_the_last_call() -> None:
    tape = Tape()
    tape.start()
    tape.call("a")
    tape.call("b")
    tape.finish()
    other = Tape("elsewhere", second=10**6)
    other.reward(1.0, "rollout", id="judge")
    episode = assembled(other, tape)
    assert {each.call_id: each.reward for each in episode.transitions} == {"a": 0.0, "b": 1.0}
    assert episode.complete


def test_a_reward_that_finds_no_call_counts_in_the_return_only() -> None:
    tape = Tape()
    tape.call("a")
    tape.reward(1.0, "call", call="unknown")
    tape.reward(2.0, "none")
    tape.reward(4.0, "scope", scope="a scope without calls")
    tape.reward(8.0, "call", call="a", choice=3)
    episode = assembled(tape)
    (transition,) = episode.transitions
    assert (episode.return_, transition.reward, transition.return_to_go) == (15.0, 0.0, 0.0)
    assert [reward.call_id for reward in episode.rewards] == [None] * 4


def test_a_rollout_without_calls_keeps_its_return() -> None:
    tape = Tape()
    tape.start()
    tape.reward(1.0, "rollout")
    episode = assembled(tape)
    assert (episode.return_, episode.transitions) == (1.0, [])


def test_a_later_reward_with_the_same_id_replaces_the_earlier_one() -> None:
    tape = Tape()
    tape.call("a")
    tape.reward(1.0, "call", call="a", id="judge")
    tape.reward(0.25, "call", call="a")
    tape.call("b")
    tape.reward(3.0, "call", call="b", id="judge")
    episode = assembled(tape)
    assert [each.reward for each in episode.transitions] == [0.25, 3.0]
    told = [(each.value, each.replaced) for each in episode.rewards]
    assert told == [(1.0, True), (0.25, False), (3.0, False)]
    assert episode.return_ == 3.25


def test_a_reward_sent_again_from_another_process_doubles_nothing() -> None:
    tape = Tape()
    tape.start()
    tape.call("a")
    for second in (100, 200):
        retry = Tape(f"retry {second}", second=second)
        retry.reward(1.0, "rollout", id="judge")
        tape.records += retry.records
    assert assembled(tape).return_ == 1.0


def test_a_reward_for_a_choice_goes_to_that_choice() -> None:
    tape = Tape()
    tape.engine_call("many", [1], [2], [3])
    tape.reward(1.0, "call", call="many", choice=1)
    # Without choice: to the choice that is known to be used.
    tape.reward(0.5, "call", call="many")
    told = [(each.choice, each.reward, each.return_to_go) for each in assembled(tape).transitions]
    assert told == [(0, 0.0, 1.5), (1, 1.5, 1.5)]


def test_a_reward_without_choice_goes_to_the_first_where_use_is_unknown() -> None:
    tape = Tape()
    tape.call("many", chat_body("a", "b"))
    tape.reward(1.0, "call", call="many")
    assert [each.reward for each in assembled(tape).transitions] == [1.0, 0.0]


def test_a_dropped_call_keeps_its_share_of_the_returns() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    tape.call("text", chat_body("x"))
    tape.reward(1.0, "call", call="text")
    a, text = assembled(tape).transitions
    assert text.drop_reason == "no_token_ids"
    assert (a.return_to_go, text.return_to_go) == (1.0, 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_no_reward(value: float) -> None:
    tape = Tape()
    tape.call("a")
    tape.reward({"good": 1.0, "bad": value}, "call", call="a")
    episode = assembled(tape)
    assert (episode.rewards, episode.return_) == ([], None)


def test_sums_are_exact_and_never_infinite() -> None:
    tape = Tape()
    tape.call("a")
    for value in [0.1] * 10:
        tape.reward(value, "call", call="a")
    (transition,) = assembled(tape).transitions
    # 0.1 ten times is 0.9999999999999999 when added one by one.
    assert transition.reward == transition.return_to_go == 1.0
    for _ in range(2):
        tape.reward(1.7e308, "call", call="a")
    (transition,) = assembled(tape).transitions
    assert transition.reward == transition.return_to_go == 1.7976931348623157e308


def test_rewards_are_decoded_in_the_order_given_with_what_was_recorded() -> None:
    tape = Tape()
    tape.reward({"x": 1.0, "y": 2.0}, "call", call="ca_1", choice=2, scope="sc", id="r")
    tape.call("passed over")
    tape.reward(5.0, "none", id="r")
    first, second = decode_rewards(tape.records)
    assert (first.value, first.components, first.bound) == (3.0, {"x": 1.0, "y": 2.0}, "call")
    assert (first.call_id, first.choice, first.scope_id, first.reward_id) == ("ca_1", 2, "sc", "r")
    assert (first.replaced, second.replaced) == (True, False)


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(numbers, max_size=3), min_size=1, max_size=6), st.lists(numbers, max_size=2))
def test_the_return_is_the_sum_of_all_rewards(bound: list[list[float]], unbound: list[float]) -> None:
    tape = Tape()
    for at, values in enumerate(bound):
        tape.call(f"call {at}")
        for value in values:
            tape.reward(value, "call", call=f"call {at}")
    for value in unbound:
        tape.reward(value, "none")
    episode = assembled(tape)
    everything = [value for values in bound for value in values] + unbound
    if not everything:
        assert episode.return_ is None
        return
    assert episode.return_ == math.fsum(everything)
    for at, transition in enumerate(episode.transitions):
        assert transition.reward == math.fsum(bound[at])
        later = [value for values in bound[at:] for value in values]
        assert transition.return_to_go == math.fsum(later)
