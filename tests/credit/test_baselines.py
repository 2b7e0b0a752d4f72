"""Every baseline on numbers worked by hand.

1. A cell is a (group, agent); a rollout has one entry in it, the mean of the agent's credits.
2. Group of one: advantage 0, skipped as "lone". No variance: 0, skipped as "no_variance".
3. Under broadcast an agent in one rollout alone is compared with the group's other rollouts.
4. by="group" compares whatever the agent.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp import Group
from lightning_sdk.mdp.advantages import Advantages, compute_advantages
from lightning_sdk.mdp.select import Selection
from support.credit_groups import call, group, rollout


def advantages(groups: list[Group], baseline: str, credit: str = "broadcast", **params: Any) -> list[float]:
    return computed(groups, baseline, credit, **params).advantage_C.tolist()


def computed(groups: list[Group], baseline: str, credit: str = "broadcast", **params: Any) -> Advantages:
    result = compute_advantages(groups, credit=credit, baseline=baseline, baseline_params=params)
    found = (result.credit_C - result.baseline_C) / result.scale_C
    np.testing.assert_allclose(found, result.advantage_C, rtol=1e-12)
    assert result.advantage_C.dtype == np.float64
    return result


def rewarded(*returns: float) -> Group:
    """Rollouts of one call each."""
    return group(*(rollout(f"r{at}", call(), extra=value) for at, value in enumerate(returns)))


# Two groups: returns 1, 0, 0 and 5, 3.
TWO_GROUPS = [
    rewarded(1.0, 0.0, 0.0),
    group(rollout("s0", call(5.0)), rollout("s1", call(3.0)), group_id="h"),
]
# One rollout in three calls with return 1, one in one call with return 0.
LONG_AND_SHORT = [group(rollout("a", call(), call(), call(1.0)), rollout("b", call(), extra=0.0))]


def test_rloo_subtracts_the_mean_of_the_other_rollouts() -> None:
    # g: 1 - (0+0)/2 = 1; 0 - (1+0)/2 = -0.5 twice. h: 5 - 3 = 2; 3 - 5 = -2.
    assert advantages(TWO_GROUPS, "rloo") == [1.0, -0.5, -0.5, 2.0, -2.0]


def test_a_rollout_weighs_one_however_many_calls_it_has() -> None:
    # Over rollouts the others' mean of a is 0 and of b is 1. Over rows it would be (1+1+0)/3 for a call of a.
    assert advantages(LONG_AND_SHORT, "rloo") == [1.0, 1.0, 1.0, -1.0]
    # Mean over rollouts 1/2; over rows 3/4.
    assert advantages(LONG_AND_SHORT, "mean") == [0.5, 0.5, 0.5, -0.5]


def test_an_entry_is_the_mean_of_the_agents_credits_in_the_rollout() -> None:
    # per_call. a: calls 1, 0, 2 -> entry 1. b: call 4 -> entry 4. c: calls 0, 1 -> entry 0.5.
    groups = [
        group(
            rollout("a", call(1.0), call(), call(2.0)),
            rollout("b", call(4.0)),
            rollout("c", call(), call(1.0)),
        )
    ]
    # Others of a: (4 + 0.5)/2 = 2.25; of b: (1 + 0.5)/2 = 0.75; of c: (1 + 4)/2 = 2.5.
    assert advantages(groups, "rloo", "per_call") == [-1.25, -2.25, -0.25, 3.25, -2.5, -1.5]


def test_agents_are_compared_apart() -> None:
    groups = [
        group(
            rollout("a", call(1.0, "writer"), call(10.0, "checker")),
            rollout("b", call(3.0, "writer"), call(14.0, "checker")),
        )
    ]
    # per_call. writer: 1 - 3 = -2, 3 - 1 = 2. checker: 10 - 14 = -4, 14 - 10 = 4.
    assert advantages(groups, "rloo", "per_call") == [-2.0, -4.0, 2.0, 4.0]
    # Whatever the agent: entries (1+10)/2 = 5.5 and (3+14)/2 = 8.5.
    assert advantages(groups, "rloo", "per_call", by="group") == [-7.5, 1.5, -2.5, 8.5]


def test_mean_subtracts_the_mean_with_its_own_entry() -> None:
    # g: mean 1/3. h: mean 4.
    expected = [2 / 3, -1 / 3, -1 / 3, 1.0, -1.0]
    np.testing.assert_allclose(advantages(TWO_GROUPS, "mean"), expected, rtol=1e-15)


def test_dr_grpo_is_mean_with_a_loss_of_its_own() -> None:
    result = computed(TWO_GROUPS, "dr_grpo")
    assert result.advantage_C.tolist() == advantages(TWO_GROUPS, "mean")
    assert result.aggregation == "token_sum"
    assert computed(TWO_GROUPS, "mean").aggregation == "rollout_mean"


def test_grpo_divides_by_the_standard_deviation_of_the_rollouts() -> None:
    # Returns 1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9 = 14.
    group_ = [rewarded(1.0, 2.0, 3.0, 6.0)]
    for ddof, n in ((1, 3), (0, 4)):
        std = math.sqrt(14 / n) + 1e-6
        expected = [-2 / std, -1 / std, 0.0, 3 / std]
        np.testing.assert_allclose(advantages(group_, "grpo", ddof=ddof), expected, rtol=1e-14)
    assert computed(group_, "grpo").scale_C[0] == pytest.approx(math.sqrt(14 / 3) + 1e-6, rel=1e-14)


def test_grpo_refuses_another_ddof() -> None:
    with pytest.raises(ConfigError, match="ddof is 2"):
        advantages(TWO_GROUPS, "grpo", ddof=2)


def test_dr_mas_has_a_mean_and_a_deviation_of_each_agent() -> None:
    groups = [
        group(
            rollout("a", call(1.0, "writer"), call(100.0, "checker"), call(100.0, "checker")),
            rollout("b", call(3.0, "writer"), call(500.0, "checker")),
        )
    ]
    # writer: entries 1, 3: mean 2, std sqrt(2). checker: entries 100, 500: mean 300, std sqrt(80000) = 200 sqrt(2).
    # The checker's two calls in a count once.
    unit = 1 / math.sqrt(2)
    expected = [-unit, -unit, -unit, unit, unit]
    np.testing.assert_allclose(advantages(groups, "dr_mas", "per_call"), expected, rtol=1e-6)
    np.testing.assert_allclose(advantages(groups, "dr_mas", "per_call", epsilon=0.0), expected, rtol=1e-14)


def test_max_rl_divides_by_the_mean() -> None:
    # One success in four: mean 1/4. (1 - 1/4)/(1/4) = 3; (0 - 1/4)/(1/4) = -1.
    assert advantages([rewarded(1.0, 0.0, 0.0, 0.0)], "max_rl") == [3.0, -1.0, -1.0, -1.0]


def test_max_rl_of_failures_alone_is_nothing() -> None:
    result = computed([rewarded(0.0, 0.0)], "max_rl")
    assert result.advantage_C.tolist() == [0.0, 0.0]
    assert result.counts["groups_no_variance"] == 1


def test_max_rl_refuses_negative_credits() -> None:
    with pytest.raises(
        ConfigError, match=r"credits of at least 0, and choice 0 of call 'r1\.0' .* has -1\.0"
    ):
        advantages([rewarded(1.0, -1.0)], "max_rl")


def test_none_is_the_credit() -> None:
    assert advantages(TWO_GROUPS, "none") == [1.0, 0.0, 0.0, 5.0, 3.0]
    assert computed([rewarded(0.0, 0.0)], "none").in_loss_C.all()


def test_reinforce_pp_whitens_over_tokens() -> None:
    # Return 1 on 3 tokens, return 5 on 1 token: mean (3·1 + 5)/4 = 2; squares 3·1 + 9 = 12; variance 12/3 = 4.
    groups = [group(rollout("a", call(1.0, tokens=3)), rollout("b", call(5.0, tokens=1)))]
    scale = math.sqrt(4 + 1e-8)
    np.testing.assert_allclose(advantages(groups, "reinforce++"), [-1 / scale, 3 / scale], rtol=1e-14)


def test_reinforce_pp_whitens_over_the_whole_batch_and_by_policy() -> None:
    # Policy tiny: 1 and 3, one token each: mean 2, variance (1 + 1)/1 = 2. Policy b: 7 everywhere, so skipped.
    groups = [
        group(rollout("a", call(1.0, tokens=1))),
        group(rollout("b", call(3.0, tokens=1)), group_id="h"),
        group(rollout("c", call(7.0, policy="b")), group_id="i"),
    ]
    result = computed(groups, "reinforce++", epsilon=0.0)
    np.testing.assert_allclose(result.advantage_C, [-1 / math.sqrt(2), 1 / math.sqrt(2), 0.0], rtol=1e-14)
    assert result.reason_C == (None, None, "no_variance")


def test_reinforce_pp_counts_only_tokens_that_are_trained() -> None:
    # The third rollout was cut: out of the loss, so no part of the whitening, but it is told what it would get.
    episodes = [rollout("a", call(1.0, tokens=1)), rollout("b", call(3.0, tokens=1))]
    cut = rollout("c", call(4.0, tokens=50), truncated=True)
    result = compute_advantages(
        [group(*episodes, cut)], baseline="reinforce++", mask_truncated=True, baseline_params={"epsilon": 0.0}
    )
    np.testing.assert_allclose(result.advantage_C, np.array([-1.0, 1.0, 2.0]) / math.sqrt(2), rtol=1e-14)
    assert result.reason_C == (None, None, "masked_truncated")


def test_reinforce_pp_needs_tokens_to_count() -> None:
    text = [
        group(
            rollout("a", call(1.0), extra=0.0),
            rollout("b", call(2.0, fidelity="text", response_token_ids=None)),
        )
    ]
    with pytest.raises(ConfigError, match=r"call 'b\.0' of rollout 'b' has no token ids"):
        compute_advantages(text, baseline="reinforce++", selection=Selection(require_engine=False))


def test_reinforce_pp_baseline_centres_by_group_then_whitens_over_tokens() -> None:
    # g: returns 1, 0 on 3 and 1 tokens: mean 1/2, d = 1/2, -1/2. h: 5, 3 on 1 token each: mean 4, d = 1, -1.
    # Over tokens: mean (3·1/2 - 1/2 + 1 - 1)/6 = 1/6. Squares: 3(1/3)² + (2/3)² + (5/6)² + (7/6)²
    # = (12 + 16 + 25 + 49)/36 = 102/36; variance 102/(36·5) = 17/30.
    groups = [
        group(rollout("a", call(1.0, tokens=3)), rollout("b", call(tokens=1), extra=0.0)),
        group(rollout("c", call(5.0, tokens=1)), rollout("d", call(3.0, tokens=1)), group_id="h"),
    ]
    expected = np.array([1 / 3, -2 / 3, 5 / 6, -7 / 6]) / math.sqrt(17 / 30)
    np.testing.assert_allclose(advantages(groups, "reinforce++_baseline", epsilon=0.0), expected, rtol=1e-14)


def test_groups_without_variance_are_no_part_of_the_whitening() -> None:
    groups = [
        rewarded(1.0, 0.0),
        group(rollout("c", call(5.0, tokens=99)), rollout("d", call(5.0)), group_id="h"),
    ]
    result = computed(groups, "reinforce++_baseline", epsilon=0.0)
    # d = 1/2, -1/2 on 2 tokens each: mean 0, variance 4·(1/4)/3 = 1/3.
    np.testing.assert_allclose(
        result.advantage_C, [math.sqrt(3) / 2, -math.sqrt(3) / 2, 0.0, 0.0], rtol=1e-14
    )
    assert result.reason_C[2:] == ("no_variance", "no_variance")
    assert result.counts["groups_no_variance"] == 1


COMPARING = ["rloo", "mean", "grpo", "dr_grpo", "dr_mas", "max_rl", "reinforce++_baseline"]


@pytest.mark.parametrize("baseline", COMPARING)
def test_a_group_of_one_gets_0(baseline: str) -> None:
    result = computed(
        [rewarded(7.0), group(rollout("x", call(1.0)), rollout("y", call(2.0)), group_id="h")], baseline
    )
    assert result.advantage_C[0] == 0.0
    assert result.reason_C == ("lone", None, None)
    assert result.in_loss_C.tolist() == [False, True, True]
    assert result.counts["groups_lone"] == 1
    assert result.counts["calls_lone"] == 1


@pytest.mark.parametrize("baseline", COMPARING)
def test_a_group_without_variance_gets_0_and_is_skipped(baseline: str) -> None:
    # 0.1 three times: a mean of 0.30000000000000004 / 3 would differ from 0.1 in the last bit.
    result = computed([rewarded(0.1, 0.1, 0.1)], baseline)
    assert result.advantage_C.tolist() == [0.0] * 3
    assert result.reason_C == ("no_variance",) * 3
    assert result.counts["groups_no_variance"] == 1
    assert result.counts["calls_trained"] == 0


def test_calls_that_differ_in_rollouts_that_do_not_are_still_compared_without_a_scale() -> None:
    groups = [group(rollout("a", call(1.0), call()), rollout("b", call(), call(1.0)))]
    # per_call: both entries are 1/2, so leave-one-out gives 1 - 1/2 and 0 - 1/2.
    assert advantages(groups, "rloo", "per_call") == [0.5, -0.5, -0.5, 0.5]
    # There is no deviation to divide by.
    assert computed(groups, "grpo", "per_call").reason_C == ("no_variance",) * 4


def test_a_lone_agent_is_compared_with_the_groups_other_rollouts_under_broadcast() -> None:
    groups = [
        group(
            rollout("a", call(), call(3.0, "helper")),
            rollout("b", call(1.0)),
            rollout("c", call(), extra=0.0),
        )
    ]
    result = computed(groups, "rloo")
    # Solver: 3 - (1 + 0)/2, 1 - (3 + 0)/2, 0 - (3 + 1)/2. The helper was in a alone: 3 - (1 + 0)/2 too.
    assert result.advantage_C.tolist() == [2.5, 2.5, -0.5, -2.0]
    assert result.counts["lone_agents_by_group"] == 1
    # mean: helper against the whole group, mean 4/3.
    assert advantages(groups, "mean")[1] == pytest.approx(3 - 4 / 3, rel=1e-15)


def test_a_lone_agent_gets_0_where_credits_are_its_own() -> None:
    groups = [group(rollout("a", call(1.0), call(3.0, "helper")), rollout("b", call(2.0)))]
    result = computed(groups, "rloo", "per_call")
    assert result.advantage_C.tolist() == [-1.0, 0.0, 1.0]
    assert result.reason_C == (None, "lone", None)


def test_what_is_no_decision_is_in_no_mean_and_has_no_advantage() -> None:
    groups = [
        group(
            rollout("a", call(1.0), call(drop_reason="error"), call(drop_reason="unused_choice")),
            rollout("b", call(3.0)),
        )
    ]
    result = computed(groups, "rloo", "per_call")
    np.testing.assert_array_equal(result.advantage_C, [-2.0, np.nan, np.nan, 2.0])


def test_dropping_a_call_changes_no_baseline() -> None:
    groups = [group(rollout("a", call(1.0), call(2.0, tokens=500)), rollout("b", call(3.0)))]
    whole = computed(groups, "rloo", "per_call")
    result = compute_advantages(groups, credit="per_call", selection=Selection(max_tokens=100))
    np.testing.assert_array_equal(result.advantage_C, whole.advantage_C)
    assert result.reason_C == (None, "over_length", None)


def test_by_and_lone_agent_take_only_what_they_know() -> None:
    with pytest.raises(ConfigError, match="by is 'agents'; give 'agent' or 'group'"):
        advantages(TWO_GROUPS, "rloo", by="agents")
    with pytest.raises(ConfigError, match="lone_agent is 'skip'"):
        advantages(TWO_GROUPS, "rloo", lone_agent="skip")


def test_huge_returns_do_not_overflow() -> None:
    big = 1.7e308
    result = computed([rewarded(big, big, 0.0)], "mean")
    np.testing.assert_allclose(result.baseline_C, [big * (2 / 3)] * 3, rtol=1e-15)
    assert advantages([rewarded(big, big, big / 2)], "rloo")[2] == pytest.approx(-big / 2)
