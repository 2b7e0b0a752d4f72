"""Every credit on numbers worked by hand; those by state are in test_state_credits.

1. broadcast: the return. broadcast_scope: rewards of the call's scope and of those around it.
2. per_call and discounted: over turns, which are decisions; what others' calls brought belongs to the turn before.
3. turn_gae: from a critic's values, with a bootstrap where the rollout was truncated.
4. precomputed: what is given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp import Episode
from lightning_sdk.mdp.advantages import compute_advantages
from lightning_sdk.mdp.credit import find_credit
from lightning_sdk.mdp.select import Selection
from lightning_sdk.mdp.table import build_table
from support.credit_groups import call, group, rollout

NAN = float("nan")


def credits_of(
    credit: str, *episodes: Episode, selection: Selection | None = None, **params: Any
) -> list[float]:
    table = build_table([group(*episodes)], selection=selection)
    value_C = find_credit(credit).function(table, **params)
    assert value_C.dtype == np.float64
    assert value_C.shape == (table.calls,)
    return list(value_C)


def equal(found: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_broadcast_gives_the_return_to_every_call_of_every_agent() -> None:
    # a: 1 + 2 and 0.5 that found no call = 3.5.
    found = credits_of(
        "broadcast", rollout("a", call(1.0), call(2.0, "critic"), extra=0.5), rollout("b", call(4.0))
    )
    equal(found, [3.5, 3.5, 4.0])


def test_broadcast_of_nothing_is_unknown() -> None:
    equal(credits_of("broadcast", rollout("a", call(), rewarded=False)), [NAN])


def test_broadcast_scope_gives_a_call_the_rewards_of_its_scope_and_of_those_around_it() -> None:
    # team ─┬─ writer
    #       └─ checker ── helper. Emitted: rollout 1, team 10, writer 100, checker 1000, helper 10000.
    scopes = [("team", None), ("writer", "team"), ("checker", "team"), ("helper", "checker")]
    rewards = [(None, 1.0), ("team", 10.0), ("writer", 100.0), ("checker", 1000.0), ("helper", 10000.0)]
    episode = rollout(
        "a",
        call(scope="team"),
        call(scope="writer"),
        call(scope="checker"),
        call(scope="helper"),
        call(scope=None),
        scopes=scopes,
        scope_rewards=rewards,
    )
    # team 1 + 10; writer + 100; checker 11 + 1000; helper + 10000; outside any scope: the rollout's alone.
    equal(credits_of("broadcast_scope", episode), [11.0, 111.0, 1011.0, 11011.0, 1.0])


def test_a_reward_of_a_call_belongs_to_that_calls_scope() -> None:
    episode = rollout(
        "a", call(5.0, scope="writer"), call(scope="writer"), call(scope="checker"), scopes=[("writer", None)]
    )
    equal(credits_of("broadcast_scope", episode), [5.0, 5.0, 0.0])


def test_a_replaced_reward_counts_nowhere() -> None:
    episode = rollout("a", call(1.0, scope="x"), scopes=[("x", None)])
    old = replace(episode.rewards[0], value=50.0, replaced=True)
    equal(credits_of("broadcast_scope", replace(episode, rewards=[old, *episode.rewards])), [1.0])


def test_broadcast_scope_without_scopes_is_broadcast() -> None:
    equal(credits_of("broadcast_scope", rollout("a", call(1.0), call(2.0), extra=0.5)), [3.5, 3.5])


def test_broadcast_scope_gives_a_configured_failure_to_the_whole_rollout() -> None:
    episode = rollout("a", call(scope="x"), call(), outcome="failed", rewarded=False, scopes=[("x", None)])
    result = compute_advantages([group(episode)], credit="broadcast_scope", failure_reward=-1.0)
    assert result.credit_C.tolist() == [-1.0, -1.0]


def test_per_call_gives_each_call_its_own_reward() -> None:
    equal(credits_of("per_call", rollout("a", call(1.0), call(), call(-2.0), extra=9.0)), [1.0, 0.0, -2.0])


def test_what_a_judges_call_brought_belongs_to_the_turn_before() -> None:
    episode = rollout(
        "a",
        call(7.0, model="judge"),
        call(1.0),
        call(3.0, model="judge"),
        call(0.5, model="judge"),
        call(2.0),
    )
    # 1 + 3 + 0.5; 2. The 7 came before any decision: it is nobody's here, though it counts in the return.
    found = credits_of("per_call", episode, selection=Selection(models="tiny"))
    equal(found, [NAN, 4.5, NAN, NAN, 2.0])


def test_discounted_sums_what_comes_later() -> None:
    # r = 1, 0, 4; gamma 1/2: G_3 = 4, G_2 = 0 + 2, G_1 = 1 + 1.
    episode = rollout("a", call(1.0), call(0.0, "critic"), call(4.0))
    equal(credits_of("discounted", episode, gamma=0.5), [2.0, 2.0, 4.0])
    equal(credits_of("discounted", episode), [5.0, 4.0, 4.0])
    equal(credits_of("discounted", episode, gamma=0.0), credits_of("per_call", episode))


def test_failed_calls_cost_no_discount() -> None:
    episode = rollout("a", call(), call(drop_reason="error"), call(4.0))
    equal(credits_of("discounted", episode, gamma=0.5), [2.0, NAN, 4.0])


def test_choices_of_one_call_are_one_turn() -> None:
    # Choices with rewards 1 and 3 of the first call; then a call with 8. gamma 1/2: 1 + 4 and 3 + 4.
    episode = rollout("a", call(1.0), call(3.0, further_choice=True), call(8.0))
    equal(credits_of("discounted", episode, gamma=0.5), [5.0, 7.0, 8.0])


def test_discounted_ends_with_the_rollout() -> None:
    equal(
        credits_of("discounted", rollout("a", call(1.0)), rollout("b", call(2.0), call(3.0))), [1.0, 5.0, 3.0]
    )


@pytest.mark.parametrize("gamma", [-0.1, 1.1, NAN])
def test_a_discount_is_between_0_and_1(gamma: float) -> None:
    with pytest.raises(ConfigError, match="gamma is"):
        credits_of("discounted", rollout("a", call(1.0)), gamma=gamma)


def test_turn_gae_is_the_discounted_sum_of_surprises() -> None:
    # r = 0, 1; V = 2, 4; gamma 1/2, lam 1/2. Terminated: delta_2 = 1 - 4 = -3; delta_1 = 0 + 4/2 - 2 = 0.
    # A_2 = -3; A_1 = 0 + (1/4)(-3) = -3/4.
    episode = rollout("a", call(0.0), call(1.0))
    values = {"a.0": 2.0, "a.1": 4.0}
    equal(credits_of("turn_gae", episode, values=values, gamma=0.5, lam=0.5), [-0.75, -3.0])


def test_turn_gae_bootstraps_a_truncated_rollout_only() -> None:
    # As above but cut, with V = 8 after the last response: delta_2 = 1 + 4 - 4 = 1; A_1 = 0 + 1/4.
    cut = rollout("a", call(0.0), call(1.0), truncated=True)
    ended = rollout("b", call(0.0), call(1.0))
    found = credits_of(
        "turn_gae",
        cut,
        ended,
        values=lambda table: [2.0, 4.0, 2.0, 4.0],
        final_values={"a": 8.0, "b": 8.0},
        gamma=0.5,
        lam=0.5,
    )
    equal(found, [0.25, 1.0, -0.75, -3.0])


def test_turn_gae_with_lam_1_is_the_return_minus_the_value() -> None:
    # G = 5, 4, 4; V = 1, 2, 3.
    episode = rollout("a", call(1.0), call(0.0), call(4.0))
    equal(credits_of("turn_gae", episode, values=[1.0, 2.0, 3.0], lam=1.0), [4.0, 2.0, 1.0])


def test_turn_gae_passes_over_what_is_no_decision() -> None:
    episode = rollout("a", call(0.0), call(1.0, model="judge"), call(2.0))
    found = credits_of(
        "turn_gae", episode, values={"a.0": 1.0, "a.2": 1.0}, lam=1.0, selection=Selection(models="tiny")
    )
    equal(found, [2.0, NAN, 1.0])  # 0 + 1 + 2 - 1; 2 - 1


def test_turn_gae_has_no_group_baseline() -> None:
    groups = [group(rollout("a", call(1.0)), rollout("b", call(2.0)))]
    params = {"values": [0.5, 0.5]}
    result = compute_advantages(groups, credit="turn_gae", credit_params=params)
    assert result.baseline == "none"
    assert result.advantage_C.tolist() == [0.5, 1.5]
    with pytest.raises(ConfigError, match="credit 'turn_gae' is an advantage already"):
        compute_advantages(groups, credit="turn_gae", credit_params=params, baseline="rloo")
    # Whitening is no group baseline: (0.5 - 1)/std, (1.5 - 1)/std, with 2 tokens each: variance 4·(1/4)/3.
    whitened = compute_advantages(groups, credit="turn_gae", credit_params=params, baseline="reinforce++")
    np.testing.assert_allclose(whitened.advantage_C, [-np.sqrt(3) / 2, np.sqrt(3) / 2], rtol=1e-7)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "turn_gae needs a critic: give values="),
        ({"values": [1.0]}, r"values of turn_gae has shape \(1,\); expected \(2,\)"),
        (
            {"values": {"a.0": 1.0}, "final_values": [1.0]},
            "values of turn_gae has nan for choice 0 of call 'a.1'",
        ),
        ({"values": [1.0, 1.0]}, "rollout 'a' was truncated, .* give final_values="),
        ({"values": [1.0, 1.0], "final_values": {"b": 1.0}}, "rollout 'a' was truncated"),
        ({"values": [1.0, 1.0], "final_values": [1.0], "lam": 2.0}, "lam is 2.0"),
    ],
)
def test_turn_gae_says_what_it_lacks(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        credits_of("turn_gae", rollout("a", call(1.0), call(), truncated=True), **params)


def test_precomputed_is_what_is_given() -> None:
    episode = rollout("a", call(), call(further_choice=True), call())
    equal(
        credits_of("precomputed", episode, values={("a.0", 0): 1.0, ("a.0", 1): 2.0, "a.2": 3.0}),
        [1.0, 2.0, 3.0],
    )
    equal(credits_of("precomputed", episode, values=[1, 2, 3]), [1.0, 2.0, 3.0])
    equal(credits_of("precomputed", episode, values=lambda each: each.choice + 0.5), [0.5, 1.5, 0.5])
    with pytest.raises(ConfigError, match="precomputed needs values="):
        credits_of("precomputed", episode)


def test_precomputed_needs_no_reward_and_takes_a_baseline_only_where_asked() -> None:
    groups = [group(rollout("a", call(), rewarded=False), rollout("b", call(), rewarded=False))]
    params = {"values": {"a.0": 1.0, "b.0": 4.0}}
    result = compute_advantages(groups, credit="precomputed", credit_params=params)
    assert (result.baseline, result.advantage_C.tolist()) == ("none", [1.0, 4.0])
    compared = compute_advantages(groups, credit="precomputed", credit_params=params, baseline="rloo")
    assert compared.advantage_C.tolist() == [-3.0, 3.0]


def test_precomputed_must_know_every_call_that_is_trained_and_no_other() -> None:
    groups = [group(rollout("a", call(), call(drop_reason="no_token_ids")))]
    params = {"values": {"a.0": 1.0}}
    assert compute_advantages(groups, credit="precomputed", credit_params=params).in_loss_C.tolist() == [
        True,
        False,
    ]
    with pytest.raises(ConfigError, match=r"credit 'precomputed' gave nan for choice 0 of call 'a\.0'"):
        compute_advantages(groups, credit="precomputed", credit_params={"values": {}})
