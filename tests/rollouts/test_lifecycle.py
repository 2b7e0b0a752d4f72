"""The life of a rollout: every state with every event."""

from __future__ import annotations

from typing import get_args

import pytest

from lightning_sdk.rollouts.lifecycle import FINAL, TABLE, Event, Life, State, advance

STATES, EVENTS = get_args(State), get_args(Event)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_what_is_not_in_the_table_cannot_happen(state: State, event: Event) -> None:
    life = Life(state, attempt=1, used=1)
    if (state, event) in TABLE:
        following = advance(life, event)
        assert following is not None
        assert following.state == TABLE[state, event]
    else:
        with pytest.raises(ValueError, match=f"a rollout that is {state} cannot {event}"):
            advance(life, event)


def test_every_state_can_be_reached_and_every_state_that_is_not_final_can_be_left() -> None:
    assert {*TABLE.values()} == {*STATES}
    assert {state for state, event in TABLE if event != "reopen"} == {*STATES} - FINAL


def test_each_start_is_the_next_attempt() -> None:
    life = advance(Life(), "start")
    assert life == Life("running", attempt=1, used=1)
    assert life is not None
    again = advance(life, "retry", attempt=1)
    assert again is not None
    assert advance(again, "start") == Life("running", attempt=2, used=2)


@pytest.mark.parametrize("event", ["succeed", "fail", "lose", "cancel", "retry"])
def test_what_an_earlier_attempt_tells_comes_too_late(event: Event) -> None:
    assert advance(Life("running", attempt=2, used=2), event, attempt=1) is None


@pytest.mark.parametrize("state", sorted(FINAL))
def test_what_is_told_after_the_end_comes_too_late(state: State) -> None:
    assert advance(Life(state, attempt=1, used=1), "succeed", attempt=1) is None


def test_an_attempt_that_has_not_begun_tells_nothing() -> None:
    with pytest.raises(ValueError, match="attempt 3 cannot succeed: the latest that began is 2"):
        advance(Life("running", attempt=2, used=2), "succeed", attempt=3)


def test_an_attempt_that_the_runner_broke_off_is_not_used_up() -> None:
    assert advance(Life("running", attempt=3, used=2), "interrupt", attempt=3) == Life("queued", 3, 1)


def test_a_rollout_that_is_run_again_on_demand_has_all_its_attempts_and_a_new_number() -> None:
    assert advance(Life("failed", attempt=2, used=2), "reopen") == Life("queued", attempt=2, used=0)
