"""GiGPO and HGPO on numbers worked by hand.

1. Both need a state_key, and say so.
2. Steps are compared within group, agent and state; a rollout has one entry in a state however often it was there.
3. A state that one rollout alone was in says nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp import Group, Transition
from lightning_sdk.mdp.advantages import compute_advantages
from support.credit_groups import MadeCall, call, group, rollout


def at(state: str, reward: float = 0.0, agent: str = "solver", **fields: Any) -> MadeCall:
    return call(reward, agent, metadata={"state": state}, **fields)


def state_key(transition: Transition) -> str:
    return str(transition.metadata["state"])


def advantages(groups: list[Group], credit: str, **params: Any) -> list[float]:
    result = compute_advantages(groups, credit=credit, credit_params={"state_key": state_key, **params})
    return list(result.advantage_C)


# a goes s, t, and wins 2. b goes s, u, t and gets nothing. c goes t and wins 1.
WALKS = [
    group(
        rollout("a", at("s"), at("t", 2.0)),
        rollout("b", at("s"), at("u"), at("t"), extra=0.0),
        rollout("c", at("t", 1.0)),
    )
]


def test_gigpo_adds_the_rollout_against_its_group_and_the_step_against_its_state() -> None:
    # A_E: returns 2, 0, 1, mean 1: 1, -1, 0.
    # gamma 1/2: G = 1, 2 | 0, 0, 0 | 1. State s: 1, 0, mean 1/2: 1/2, -1/2. u: b alone: 0.
    # State t: 2, 0, 1, mean 1: 1, -1, 0.
    expected = [1.5, 2.0, -1.5, -1.0, -2.0, 0.0]
    np.testing.assert_allclose(advantages(WALKS, "gigpo", gamma=0.5), expected, rtol=1e-15)
    # Half the weight on steps.
    half = [1.25, 1.5, -1.25, -1.0, -1.5, 0.0]
    np.testing.assert_allclose(advantages(WALKS, "gigpo", gamma=0.5, weight=0.5), half, rtol=1e-15)


def test_gigpo_may_divide_by_deviations() -> None:
    # Returns 2, 0, 1 and state t: std 1. State s: 1, 0: std sqrt(1/2), so ±(1/2)/sqrt(1/2) = ±sqrt(1/2).
    root = math.sqrt(0.5)
    expected = [1 + root, 2.0, -1 - root, -1.0, -2.0, 0.0]
    found = advantages(WALKS, "gigpo", gamma=0.5, normalise=True, epsilon=0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_coming_back_to_a_state_does_not_make_a_rollout_weigh_more() -> None:
    # gamma 1. a is in s three times with G = 3, 3, 3 (entry 3); b once with G = 1. Mean 2 over rollouts.
    groups = [group(rollout("a", at("s"), at("s"), at("s", 3.0)), rollout("b", at("s", 1.0)))]
    # A_E: 3 - 2 = 1, 1 - 2 = -1. A_S: 1, 1, 1, -1.
    assert advantages(groups, "gigpo", gamma=1.0) == [2.0, 2.0, 2.0, -2.0]


def test_a_state_that_one_rollout_alone_was_in_says_nothing() -> None:
    # a is in s twice with G = 1 and 0: there is no other rollout.
    groups = [group(rollout("a", at("s", 1.0), at("s")), rollout("b", at("t", 3.0)))]
    assert advantages(groups, "gigpo", gamma=1.0) == [-1.0, -1.0, 1.0]


def test_states_are_compared_within_agent_and_group() -> None:
    groups = [
        group(rollout("a", at("s", 1.0), at("s", 5.0, "critic")), rollout("b", at("s", 3.0))),
        group(rollout("c", at("s", 100.0)), group_id="h"),
    ]
    # Solver in s: G = 6, 3, mean 4.5: ±1.5. Critic: a alone, 0. A_E: returns 6, 3, mean 4.5: ±1.5, for the lone
    # critic against the whole group. c: alone.
    assert advantages(groups, "gigpo", gamma=1.0) == [3.0, 1.5, -3.0, 0.0]


def test_a_group_in_which_nothing_differs_is_skipped() -> None:
    groups = [group(rollout("a", at("s", 1.0)), rollout("b", at("s", 1.0)))]
    for credit in ("gigpo", "hgpo"):
        result = compute_advantages(groups, credit=credit, credit_params={"state_key": state_key})
        assert result.advantage_C.tolist() == [0.0, 0.0]
        assert result.reason_C == ("no_variance", "no_variance")
        assert result.counts["groups_no_variance"] == 1


def test_hgpo_weighs_longer_histories_more() -> None:
    # gamma 1, K = 1, alpha 1: weights 1 and 2, over what says something.
    # t at the end with G: a 4 (after s), b 0 (after s), c 2 (after u), all terminal.
    groups = [
        group(
            rollout("a", at("s"), at("t", 4.0)),
            rollout("b", at("s"), at("t"), extra=0.0),
            rollout("c", at("u"), at("t", 2.0)),
        )
    ]
    params = {"gamma": 1.0, "history": 1, "normalise": False}
    # k = 0, state t: 4, 0, 2, mean 2: 2, -2, 0. k = 1, s t: 4, 0: 2, -2; u t: c alone.
    # a: (1·2 + 2·2)/3 = 2; b: -2; c: 0/1 = 0.
    # State s at the first turn, k = 0: G 4, 0: 2, -2; it has no past, so k = 1 says nothing. u: c alone: 0.
    assert advantages(groups, "hgpo", **params) == [2.0, 2.0, -2.0, -2.0, 0.0, 0.0]


def test_hgpo_mixes_levels_that_disagree() -> None:
    # t: a 8 after s, b 2 after s, c 2 after u. k = 0: mean 4: 4, -2, -2. k = 1, s t: mean 5: 3, -3.
    groups = [
        group(
            rollout("a", at("s"), at("t", 8.0)),
            rollout("b", at("s"), at("t", 2.0)),
            rollout("c", at("u"), at("t", 2.0)),
        )
    ]
    params = {"gamma": 1.0, "history": 1, "normalise": False}
    found = advantages(groups, "hgpo", **params)
    # a: (4 + 2·3)/3 = 10/3; b: (-2 + 2·-3)/3 = -8/3; c: -2 (its deeper level says nothing).
    np.testing.assert_allclose([found[1], found[3], found[5]], [10 / 3, -8 / 3, -2.0], rtol=1e-15)
    # alpha 0 weighs both alike: (4 + 3)/2, (-2 - 3)/2.
    flat = advantages(groups, "hgpo", alpha=0.0, **params)
    np.testing.assert_allclose([flat[1], flat[3], flat[5]], [3.5, -2.5, -2.0], rtol=1e-15)


def test_hgpo_divides_by_the_deviation_of_each_level() -> None:
    # k = 0 only; t: 4, 0, 2: mean 2, std (n) sqrt(8/3).
    groups = [group(rollout("a", at("t", 4.0)), rollout("b", at("t"), extra=0.0), rollout("c", at("t", 2.0)))]
    std = math.sqrt(8 / 3) + 1e-6
    np.testing.assert_allclose(advantages(groups, "hgpo"), [2 / std, -2 / std, 0.0], rtol=1e-14)


def test_hgpo_histories_are_of_the_agent_and_choices_of_a_call_share_a_state() -> None:
    # The critic's calls in between are no part of the solver's history: both solvers come to t from s.
    groups = [
        group(
            rollout("a", at("s"), at("x", 0.0, "critic"), at("t", 3.0), at("t", 1.0, further_choice=True)),
            rollout("b", at("s"), at("t"), extra=0.0),
        )
    ]
    found = advantages(groups, "hgpo", gamma=1.0, history=1, normalise=False)
    # t: a's choices 3 and 1 (entry 2), b 0: mean 1 on both levels: 2, 0, -1.
    assert [found[2], found[3], found[5]] == [2.0, 0.0, -1.0]


@pytest.mark.parametrize("credit", ["gigpo", "hgpo"])
def test_without_a_state_key_they_are_refused(credit: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{credit} compares calls made in the same state, .* give state_key="
    ):
        compute_advantages(WALKS, credit=credit)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (lambda transition: None, r"state_key gave None for choice 0 of call 'a\.0'"),
        (
            lambda transition: ["s"],
            r"state_key gave list for choice 0 of call 'a\.0'.*, which cannot be a key",
        ),
    ],
)
def test_a_state_key_must_give_a_key(key: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compute_advantages(WALKS, credit="gigpo", credit_params={"state_key": key})


def test_hgpo_refuses_a_negative_history() -> None:
    with pytest.raises(ConfigError, match="history is -1"):
        advantages(WALKS, "hgpo", history=-1)
