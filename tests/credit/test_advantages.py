"""compute_advantages: who is trained, what is told, what is refused.

1. The default is broadcast with leave-one-out by (group, agent).
2. A call's reason is the selection's, else its rollout's, else the baseline's; counts add up.
3. User functions are taken, and checked.
4. Unknown names and parameters are refused with what there is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.advantages import compute_advantages
from lightning_sdk.mdp.baseline import BASELINES, Baselined
from lightning_sdk.mdp.select import Selection
from lightning_sdk.mdp.table import CallTable
from support.credit_groups import call, group, rollout

GROUPS = [
    group(
        rollout("a", call(1.0), call(2.0, "critic")),
        rollout("b", call(0.0), call(drop_reason="no_token_ids"), extra=0.0),
        rollout("c", call(), rewarded=False),
        rollout("d", call(1.0), truncated=True),
    ),
    group(rollout("e", call(1.0)), rollout("f", call(1.0)), group_id="h"),
]


def baselined(advantage_C: Any, baseline_C: Any, scale_C: Any, reason_C: Any = (None,) * 8) -> Baselined:
    return Baselined(advantage_C, baseline_C, scale_C, reason_C, skipped=(), counts={})


def test_the_default_is_broadcast_with_leave_one_out() -> None:
    result = compute_advantages(GROUPS)
    assert (result.credit, result.baseline) == ("broadcast", "rloo")
    # Returns 3, 0, -, 1: 3 - 1/2, 0 - 4/2, 1 - 3/2. The critic was in a alone: against b and d.
    np.testing.assert_array_equal(result.advantage_C, [2.5, 2.5, -2.0, -2.0, np.nan, -0.5, 0.0, 0.0])


def test_each_call_has_its_reason_and_the_counts_add_up() -> None:
    result = compute_advantages(GROUPS, mask_truncated=True, selection=Selection(agents="solver"))
    assert result.reason_C == (
        None,
        "unselected_agent",
        None,
        "no_token_ids",
        "no_reward",
        "masked_truncated",
        "no_variance",
        "no_variance",
    )
    assert result.in_loss_C.tolist() == [reason is None for reason in result.reason_C]
    assert result.counts == {
        "groups": 2,
        "rollouts": 6,
        "calls": 8,
        "incomplete_rollouts": 0,
        "rollouts_no_reward": 1,
        "rollouts_masked_truncated": 1,
        "groups_no_variance": 1,
        "lone_agents_by_group": 1,
        "calls_trained": 2,
        "calls_unselected_agent": 1,
        "calls_no_token_ids": 1,
        "calls_no_reward": 1,
        "calls_masked_truncated": 1,
        "calls_no_variance": 2,
    }
    assert sum(times for name, times in result.counts.items() if name.startswith("calls_")) == 8


def test_masking_truncated_rollouts_changes_no_advantage() -> None:
    whole, masked = compute_advantages(GROUPS), compute_advantages(GROUPS, mask_truncated=True)
    np.testing.assert_array_equal(whole.advantage_C, masked.advantage_C)


def test_selecting_agents_changes_no_advantage() -> None:
    whole, one = compute_advantages(GROUPS), compute_advantages(GROUPS, selection=Selection(agents="critic"))
    np.testing.assert_array_equal(whole.advantage_C, one.advantage_C)
    assert one.in_loss_C.sum() == 1


def test_nothing_gives_nothing() -> None:
    for groups in ([], [group()], [group(rollout("a"))]):
        result = compute_advantages(groups)
        assert result.advantage_C.shape == (0,)
        assert result.counts["calls_trained"] == 0


def test_users_functions_are_taken() -> None:
    def shortest(table: CallTable, *, bonus: float = 0.0) -> Any:
        return [bonus - len(table.calls_of(episode)) for episode in table.episode_C]

    def halves(table: CallTable, value_C: Any) -> Any:
        return value_C / 2

    result = compute_advantages(GROUPS, credit=shortest, credit_params={"bonus": 10.0}, baseline=halves)
    assert (result.credit, result.baseline) == ("shortest", "halves")
    assert result.credit_C.tolist() == [8.0, 8.0, 8.0, 8.0, 9.0, 9.0, 9.0, 9.0]
    assert result.advantage_C.tolist() == [4.0, 4.0, 4.0, 4.0, 4.5, 4.5, 4.5, 4.5]
    assert (result.credit_C - result.baseline_C).tolist() == result.advantage_C.tolist()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda table: np.ones(3), r"gave an array of shape \(3,\); expected \(8,\), one a transition"),
        (lambda table: np.ones((8, 1)), r"gave an array of shape \(8, 1\)"),
        (lambda table: None, r"gave an array of shape \(\)"),
        (lambda table: "high", "gave str; expected an array of 8 numbers"),
        (lambda table: np.full(8, np.nan), r"gave nan for choice 0 of call 'a\.0' of rollout 'a' \(7 such\)"),
        (lambda table: np.full(8, np.inf), "gave inf for choice 0"),
        (lambda table: np.full(8, 1j), "gave ndarray; expected an array of 8 numbers"),
        (lambda table: [10**400] * 8, "gave list; expected an array of 8 numbers"),
        (lambda table: iter([1.0] * 8), "gave list_iterator; expected an array of 8 numbers"),
        (
            lambda: np.ones(8),
            r"cannot be called \(too many positional arguments\); give a name, or a function",
        ),
        (lambda table, *, bonus: np.ones(8), r"cannot be called \(missing a required.* 'bonus'\)"),
        (5, "credit 'int' is 5; give a name, or a function"),
        (dict, "credit 'dict' is <class 'dict'>; give a name, or a function"),
    ],
)
def test_a_credit_that_gives_something_else_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compute_advantages(GROUPS, credit=function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda table, value_C: value_C[:-1], r"baseline '<lambda>' gave an array of shape \(7,\)"),
        (
            lambda table, value_C: value_C * np.nan,
            r"baseline '<lambda>' gave nan for choice 0 of call 'a\.0'",
        ),
        (
            lambda table, value_C: baselined(value_C[:-1], value_C, value_C),
            "as advantage_C, gave an array of",
        ),
        (lambda table, value_C: baselined(value_C, value_C[:-1], value_C), "as baseline_C, gave an array of"),
        (lambda table, value_C: baselined(value_C, value_C, 1.0), r"as scale_C, gave an array of shape \(\)"),
        (lambda table, value_C: baselined(value_C, value_C, value_C, ()), "a reason_C of another length"),
        (lambda table, value_C: baselined(value_C, value_C, value_C, None), "a reason_C of another length"),
    ],
)
def test_a_baseline_that_gives_something_else_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compute_advantages(GROUPS, baseline=function)


def test_what_rollouts_that_do_not_count_are_worth_may_be_unknown() -> None:
    def returns(table: CallTable) -> Any:
        return table.return_E[table.episode_C]  # NaN for c

    assert compute_advantages(GROUPS, credit=returns).counts["calls_trained"] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"credit": "brodcast"},
            "no credit is called 'brodcast'; there are broadcast, broadcast_scope, discounted",
        ),
        ({"baseline": "ppo"}, "no baseline is called 'ppo'; there are dr_grpo, dr_mas, grpo, max_rl"),
        (
            {"credit": "discounted", "credit_params": {"gama": 0.9}},
            "credit 'discounted' has no parameter 'gama'; it takes gamma",
        ),
        ({"credit_params": {"gamma": 0.9}}, "credit 'broadcast' has no parameter 'gamma'; it takes none"),
        (
            {"baseline_params": {"ddof": 0}},
            "baseline 'rloo' has no parameter 'ddof'; it takes by, lone_agent",
        ),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        compute_advantages(GROUPS, **settings)
    assert message in str(refusal.value)


def test_assembling_needs_no_numpy() -> None:
    import subprocess
    import sys

    script = "import sys; sys.modules['numpy'] = None; import lightning_sdk.mdp"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("values", ["x", ["x"] * 8, {"a.0": "x"}, {"a.0": [1.0]}, [1j] * 8, lambda each: "x"])
@pytest.mark.parametrize("credit", ["precomputed", "turn_gae"])
def test_values_that_are_no_numbers_are_refused(credit: str, values: Any) -> None:
    if credit == "turn_gae" and callable(values):
        values = lambda table: ["x"] * table.calls  # noqa: E731
    with pytest.raises(ConfigError, match=f"values of {credit} are no numbers: .*; give one number each"):
        compute_advantages(GROUPS, credit=credit, credit_params={"values": values})


STATES = {"state_key": lambda each: each.step}


@pytest.mark.parametrize("epsilon", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "settings",
    [
        {"baseline": "grpo"},
        {"baseline": "dr_mas"},
        {"baseline": "reinforce++"},
        {"baseline": "reinforce++_baseline"},
        {"credit": "gigpo", "credit_params": STATES},
        {"credit": "hgpo", "credit_params": STATES},
    ],
)
def test_what_would_turn_the_sign_of_a_divisor_is_refused(settings: dict[str, Any], epsilon: float) -> None:
    params = "credit_params" if "credit" in settings else "baseline_params"
    settings = {**settings, params: {**settings.get(params, {}), "epsilon": epsilon}}
    with pytest.raises(ConfigError, match=r"epsilon is .*; give a finite number of at least 0"):
        compute_advantages([group(rollout("a", call(1.0)), rollout("b", call()))], **settings)


@pytest.mark.parametrize("low", [-1.7e308, 1.0])
@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize(
    "credit", ["broadcast", "broadcast_scope", "per_call", "discounted", "gigpo", "hgpo"]
)
@pytest.mark.filterwarnings("error")
def test_rewards_near_the_largest_number_give_finite_advantages_or_are_refused(
    credit: str, baseline: str, low: float
) -> None:
    huge = [call(1.7e308), call(1.7e308, "critic"), call(1.7e308)]
    groups = [group(rollout("a", *huge), rollout("b", call(low), call(low)), rollout("c", *huge, call(low)))]
    params = STATES if credit in ("gigpo", "hgpo") else {}
    try:
        result = compute_advantages(groups, credit=credit, credit_params=params, baseline=baseline)
    except ConfigError as refusal:
        assert ";" in str(refusal)  # noqa: PT017 - what helps comes after it
    else:
        assert np.isfinite(result.advantage_C[result.in_loss_C]).all()
