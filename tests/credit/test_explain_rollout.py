"""An explanation has the numbers that training has, and those that they come from.

1. Entries, baseline, advantage and weight fit together, and are what `compute_advantages` and `weight_rows` give.
2. What is not trained says why, and has no weight.
3. Whitening is told as if the group were the whole batch.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.advantages import compute_advantages
from lightning_sdk.mdp.air import Finding, Function
from lightning_sdk.mdp.explain import explain_rollout
from lightning_sdk.mdp.select import Selection
from lightning_sdk.mdp.table import build_table
from support.credit_groups import MadeCall, call, group, rollout


def test_the_way_from_rewards_to_weights() -> None:
    made = group(
        rollout("a", call(0.0, tokens=3), call(1.0, tokens=1), extra=0.5),
        rollout("b", call(0.5, tokens=2)),
        rollout("c", call(-1.0, tokens=5)),
    )
    told = explain_rollout(made, "a")
    # Return 1 + 0.5. The others' entries are 0.5 and -1, mean -0.25: advantage 1.75. R = 3, N = 3 + 1.
    assert (told.return_, told.credit, told.baseline, told.rollouts, told.left_out) == (
        1.5,
        "broadcast",
        "rloo",
        3,
        {},
    )
    for each in told.calls:
        assert (each.credit, each.baseline, each.scale, each.advantage) == (1.5, -0.25, 1.0, 1.75)
        assert each.comparison is not None
        assert each.comparison.entries == (("a", 1.5), ("b", 0.5), ("c", -1.0))
        assert each.trained is not None
        assert (each.trained.rollouts, each.trained.rollout_tokens) == (3, 4)
        assert each.trained.weight == pytest.approx(1 / 12)
    # The prompts do not go on from each other (ids 1 2 3, then as many as sampled): a sequence each.
    places = [
        (each.trained.row, each.trained.first, each.trained.tokens) for each in told.calls if each.trained
    ]
    assert places == [(0, 3, 3), (1, 3, 1)]


@pytest.mark.parametrize(
    "baseline", ["rloo", "mean", "grpo", "dr_mas", "max_rl", "dr_grpo", "none", "reinforce++"]
)
@pytest.mark.parametrize("credit", ["broadcast", "broadcast_scope", "per_call", "discounted"])
def test_the_numbers_are_those_of_training(credit: str, baseline: str) -> None:
    # Of the helper all rewards are 0; the judge is in one rollout alone; the writer's mean 1 and 1 of 2 and 0.
    made = group(
        rollout("a", call(0.25), call(1.0, "critic"), call(0.5), call(0.0, "helper"), call(1.0, "writer")),
        rollout("b", call(0.5), call(0.25, "critic"), call(0.0, "helper"), call(1.0, "judge")),
        rollout("c", call(2.0, "writer"), call(0.0, "writer"), call(0.0), call(3.0, "critic")),
    )
    trained = compute_advantages([made], credit=credit, baseline=baseline)
    table = build_table([made])
    weight = 0.0
    for at, episode in enumerate(made.episodes):
        told = explain_rollout(made, str(episode.rollout_id), credit=credit, baseline=baseline)
        for each, row in zip(told.calls, table.calls_of(at), strict=True):
            assert each.advantage == trained.advantage_C[row]
            assert each.credit == trained.credit_C[row]
            assert each.reason == trained.reason_C[row]
            assert (each.trained is None) == (each.reason is not None)
            if each.trained is not None and each.trained.weight is not None:
                weight += each.trained.weight * each.trained.tokens
            assert baseline in ("none", "reinforce++") or each.comparison is not None
            if each.comparison is not None:
                assert each.comparison.skipped == each.reason
            if each.comparison is not None and baseline == "rloo" and each.reason is None:
                others = [
                    entry for rollout_id, entry in each.comparison.entries if rollout_id != episode.rollout_id
                ]
                assert each.baseline == pytest.approx(math.fsum(others) / len(others))
    assert weight == (0.0 if baseline == "dr_grpo" else pytest.approx(1.0))


def test_an_agent_alone_is_compared_with_all_agents() -> None:
    told = explain_rollout(group(rollout("a", call(1.0), call(0.0, "critic")), rollout("b", call(0.0))), "a")
    solver, critic = (each.comparison for each in told.calls)
    assert solver is not None
    assert critic is not None
    assert (solver.agent, critic.agent) == ("solver", None)
    assert critic.entries == (("a", 1.0), ("b", 0.0))


def test_what_is_not_trained_says_why() -> None:
    made = group(
        rollout("a", call(1.0), call(0.0, "critic"), call(0.0, drop_reason="error")),
        rollout("b", call(0.0)),
        rollout("c", call(0.0), rewarded=False),
    )
    told = explain_rollout(made, "a", selection=Selection(agents="solver"))
    assert [each.reason for each in told.calls] == [None, "unselected_agent", "error"]
    assert [each.trained is None for each in told.calls] == [False, True, True]
    assert told.left_out == {"c": "no_reward"}
    unrewarded = explain_rollout(made, "c")
    assert [(each.reason, each.credit, each.advantage) for each in unrewarded.calls] == [
        ("no_reward", None, None)
    ]


def test_without_variance_and_without_others_nothing_is_trained() -> None:
    equal = group(rollout("a", call(1.0)), rollout("b", call(1.0)))
    assert [each.reason for each in explain_rollout(equal, "a").calls] == ["no_variance"]
    assert [each.reason for each in explain_rollout(group(rollout("a", call(1.0))), "a").calls] == ["lone"]


def test_rules_count_in_all_rollouts_of_the_group() -> None:
    rule = Function(
        name="spoke", weight=-0.5, function=lambda episode: [Finding(episode.transitions[0].call_id)]
    )
    made = group(rollout("a", call(1.0)), rollout("b", call(0.0)))
    told = explain_rollout(made, "a", rules=[rule])
    assert told.return_ == 0.5
    assert [(each.component, each.value, each.call_id) for each in told.air] == [("air.spoke", -0.5, "a.0")]
    assert told.episode is made.episodes[0]
    assert [each.baseline for each in told.calls] == [-0.5]


def test_whitening_is_told_as_if_the_group_were_the_batch() -> None:
    made = group(rollout("a", call(1.0, tokens=3)), rollout("b", call(0.0, tokens=1)))
    told = explain_rollout(made, "a", baseline="reinforce++", baseline_params={"epsilon": 0.0})
    (only,) = told.calls
    # Three tokens of 1 and one of 0: mean 0.75, variance (3 x 0.25^2 + 0.75^2) / 3 = 0.25.
    assert only.whitening is not None
    assert only.whitening.entries == (("a", 3, 1.0), ("b", 1, 0.0))
    assert (only.whitening.mean, only.whitening.divisor) == (0.75, 0.5)
    assert (only.comparison, only.baseline, only.scale, only.advantage) == (None, 0.75, 0.5, 0.5)


def test_what_is_centred_first_is_whitened_afterwards() -> None:
    made = group(
        rollout("a", call(1.0, tokens=3)),
        rollout("b", call(0.0, tokens=1)),
        rollout("c", call(0.5, "critic")),
    )
    told = explain_rollout(
        made, "a", credit="per_call", baseline="reinforce++_baseline", baseline_params={"epsilon": 0.0}
    )
    (only,) = told.calls
    assert only.comparison is not None
    assert (only.comparison.entries, only.comparison.mean) == ((("a", 1.0), ("b", 0.0)), 0.5)
    # Less 0.5: three tokens of 0.5 and one of -0.5. Mean 0.25, variance (3 x 0.25^2 + 0.75^2) / 3 = 0.25.
    assert only.whitening is not None
    assert only.whitening.entries == (("a", 3, 0.5), ("b", 1, -0.5))
    assert (only.whitening.mean, only.whitening.divisor) == (0.25, 0.5)
    assert (only.baseline, only.scale, only.advantage) == (0.75, 0.5, 0.5)
    # The critic is in one rollout alone.
    (critic,) = explain_rollout(made, "c", credit="per_call", baseline="reinforce++_baseline").calls
    assert (critic.reason, critic.whitening) == ("lone", None)


def test_tokens_of_one_value_have_no_divisor() -> None:
    made = group(rollout("a", call(1.0)), rollout("b", call(1.0)))
    (only,) = explain_rollout(made, "a", baseline="reinforce++").calls
    assert only.whitening is not None
    assert (only.whitening.divisor, only.reason) == (None, "no_variance")


def test_parameters_and_selection_are_those_of_training() -> None:
    made = group(
        rollout("a", call(1.0), call(0.5, "critic")),
        rollout("b", call(0.0)),
        rollout("c", call(), outcome="failed", rewarded=False),
    )
    how: dict[str, Any] = {
        "credit": "discounted",
        "credit_params": {"gamma": 0.5},
        "baseline": "grpo",
        "baseline_params": {"by": "group", "ddof": 0},
        "failure_reward": -1.0,
    }
    trained = compute_advantages([made], **how)
    told = explain_rollout(made, "a", **how)
    assert [each.advantage for each in told.calls] == trained.advantage_C[:2].tolist()
    # 1 + 0.5 x 0.5 = 1.25 and 0.5: the mean is 0.875.
    for each in told.calls:
        assert each.comparison is not None
        assert (each.comparison.agent, each.comparison.is_lone) == (None, False)
        assert each.comparison.entries == (("a", 0.875), ("b", 0.0), ("c", -1.0))
    failed = explain_rollout(made, "c", **how)
    assert (failed.return_, failed.is_failure_reward, told.is_failure_reward) == (-1.0, True, False)


def test_under_dr_grpo_a_constant_length_gives_the_weight() -> None:
    made = group(rollout("a", call(1.0, tokens=3)), rollout("b", call(0.0)))
    (only,) = explain_rollout(made, "a", baseline="dr_grpo", constant_length=50).calls
    assert only.trained is not None
    assert only.trained.weight == pytest.approx(1 / (2 * 50))


def test_a_rollout_of_another_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="no rollout 'z'"):
        explain_rollout(group(rollout("a", call(1.0))), "z")


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [call(drop_reason="error", reward=1.0)],
        [call(1.0, drop_reason="unused_choice"), call(drop_reason="unused_choice", further_choice=True)],
        [call(1.0, model="judge")],
    ],
)
def test_a_rollout_without_a_decision_is_said_to_be_left_out(calls: list[MadeCall]) -> None:
    made = group(rollout("a", call(1.0)), rollout("b", call(0.0)), rollout("c", *calls, extra=1.0))
    told = explain_rollout(made, "a", selection=Selection(models="tiny"))
    assert told.left_out == {"c": "no_decision"}
    assert told.calls[0].comparison is not None
    assert told.calls[0].comparison.entries == (("a", 1.0), ("b", 0.0))
    counts = compute_advantages([made], selection=Selection(models="tiny")).counts
    assert counts["rollouts_no_decision"] == 1
