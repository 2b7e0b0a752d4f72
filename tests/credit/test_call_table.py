"""The call table: columns, and who counts.

1. Rows are the transitions, in the order group, episode, step, choice.
2. A rollout with a reward counts, however it ended; without one it counts nowhere; a missing reward is not 0.
3. failure_reward is the return of failed and truncated rollouts without one, bound to the last decision.
4. Running and lost rollouts count nowhere.
5. mask_truncated takes truncated rollouts out of the loss only.
6. What is no answer of a trained policy is no decision.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.select import Selection
from lightning_sdk.mdp.table import build_table, count_rollouts
from support.credit_groups import call, group, rollout


def test_rows_are_transitions_by_group_and_episode() -> None:
    table = build_table(
        [
            group(rollout("a", call(1.0), call(0.0, "critic")), rollout("b", call(2.0))),
            group(rollout("c", call(0.5)), group_id="h"),
        ]
    )
    assert [each.call_id for each in table.transitions] == ["a.0", "a.1", "b.0", "c.0"]
    assert table.episode_C.tolist() == [0, 0, 1, 2]
    assert table.group_E.tolist() == [0, 0, 1]
    assert table.group_C.tolist() == [0, 0, 0, 1]
    assert [table.agents[agent] for agent in table.agent_C] == ["solver", "critic", "solver", "solver"]
    assert table.reward_C.tolist() == [1.0, 0.0, 2.0, 0.5]
    assert table.return_E.tolist() == [1.0, 2.0, 0.5]
    assert [table.calls_of(each) for each in range(3)] == [range(2), range(2, 3), range(3, 4)]


def test_a_reward_that_found_no_call_counts_in_the_return() -> None:
    table = build_table([group(rollout("a", call(1.0), extra=0.25))])
    assert table.return_E.tolist() == [1.25]
    assert table.reward_C.tolist() == [1.0]


def test_without_a_reward_a_rollout_counts_nowhere() -> None:
    table = build_table([group(rollout("a", call(), rewarded=False), rollout("b", call(1.0)))])
    assert math.isnan(table.return_E[0])
    assert math.isnan(table.reward_C[0])
    assert table.in_baseline_E.tolist() == [False, True]
    assert table.in_loss_E.tolist() == [False, True]
    assert table.reason_E == ("no_reward", None)


def test_a_zero_reward_is_a_reward() -> None:
    table = build_table([group(rollout("a", call(), extra=0.0))])
    assert table.in_loss_E.tolist() == [True]
    assert table.return_E.tolist() == [0.0]


@pytest.mark.parametrize("outcome", ["failed", "truncated", "cancelled"])
def test_a_rollout_with_a_reward_counts_however_it_ended(outcome: str) -> None:
    table = build_table([group(rollout("a", call(1.0), outcome=outcome))])
    assert (table.in_baseline_E.tolist(), table.in_loss_E.tolist()) == ([True], [True])


@pytest.mark.parametrize("outcome", ["running", "lost"])
def test_a_rollout_that_is_not_all_here_counts_nowhere(outcome: str) -> None:
    table = build_table([group(rollout("a", call(1.0), outcome=outcome))], failure_reward=-1.0)
    assert (table.in_baseline_E.tolist(), table.reason_E) == ([False], (outcome,))


def test_failure_reward_is_given_to_failed_and_truncated_rollouts_without_one() -> None:
    table = build_table(
        [
            group(
                rollout("failed", call(), call(), outcome="failed", rewarded=False),
                rollout("cut", call(), outcome="truncated", rewarded=False),
                rollout("length", call(), truncated=True, rewarded=False),
                rollout("rewarded", call(1.0), outcome="failed"),
                rollout("cancelled", call(), outcome="cancelled", truncated=True, rewarded=False),
                rollout("silent", call(), rewarded=False),
            )
        ],
        failure_reward=-1.0,
    )
    assert table.return_E[:4].tolist() == [-1.0, -1.0, -1.0, 1.0]
    assert table.reason_E[4:] == ("no_reward", "no_reward")
    # Bound to the last call; the one before it has 0 now that there is a reward.
    assert table.reward_C[:5].tolist() == [0.0, -1.0, -1.0, -1.0, 1.0]


def test_failure_reward_goes_past_what_is_no_decision() -> None:
    table = build_table(
        [group(rollout("a", call(), call(drop_reason="error"), outcome="failed", rewarded=False))],
        failure_reward=-1.0,
    )
    assert table.reward_C.tolist() == [-1.0, 0.0]


def test_masked_truncated_rollouts_stay_in_the_baseline() -> None:
    table = build_table(
        [group(rollout("a", call(1.0), truncated=True), rollout("b", call(1.0)))], mask_truncated=True
    )
    assert table.in_baseline_E.tolist() == [True, True]
    assert table.in_loss_E.tolist() == [False, True]
    assert table.reason_E == ("masked_truncated", None)


def test_decisions_do_not_depend_on_whether_a_call_can_be_trained_on() -> None:
    reasons = ["error", "cancelled", "unreadable", "unused_choice", "no_token_ids", "id_check_failed", None]
    table = build_table([group(rollout("a", *(call(1.0, drop_reason=reason) for reason in reasons)))])
    assert table.decision_C.tolist() == [False, False, False, False, True, True, True]
    assert table.selected_C.tolist() == [False] * 6 + [True]
    assert table.reason_C == tuple(reasons)


def test_another_models_call_is_no_decision_and_an_unselected_agents_call_is_one() -> None:
    table = build_table(
        [group(rollout("a", call(1.0), call(1.0, model="judge"), call(1.0, "critic")))],
        selection=Selection(agents="solver", models="tiny"),
    )
    assert table.decision_C.tolist() == [True, False, True]
    assert table.reason_C == (None, "other_model", "unselected_agent")


def test_what_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="rollout 'a' was given 2 times"):
        build_table([group(rollout("a", call(1.0)), rollout("a", call(1.0)))])
    with pytest.raises(ConfigError, match="group 'g' was given 2 times; merge it"):
        build_table([group(rollout("a", call(1.0))), group(rollout("b", call(1.0)))])


def test_a_failure_reward_must_be_finite() -> None:
    with pytest.raises(ConfigError, match="failure_reward is nan"):
        build_table([], failure_reward=math.nan)


def test_columns_cannot_be_written_to() -> None:
    table = build_table([group(rollout("a", call(1.0)))])
    with pytest.raises(ValueError, match="read-only"):
        table.reward_C[0] = 2.0


def test_rewards_keep_all_their_bits() -> None:
    close = [0.9995, 1.0, 1.001]  # one and the same number in bfloat16
    table = build_table([group(*(rollout(str(value), call(value)) for value in close))])
    assert table.return_E.dtype == np.float64
    assert table.return_E.tolist() == close


def test_counts_tell_rollouts_by_reason_and_old_ones_by_length() -> None:
    table = build_table(
        [
            group(rollout("a", *[call(1.0)] * 5), rollout("b", call(1.0, policy_version=9))),
            group(rollout("c", call(), rewarded=False), group_id="h"),
        ],
        selection=Selection(min_policy_version={"tiny": 0}),
    )
    assert count_rollouts(table) == {
        "groups": 2,
        "rollouts": 3,
        "calls": 7,
        "incomplete_rollouts": 0,
        "rollouts_no_reward": 1,
    }
    old = build_table([group(*(table.episodes[:2]))], selection=Selection(min_policy_version=5))
    # Rollout a has five calls of version 0, so the whole group goes: b with its one call too.
    assert old.reason_C == ("policy_too_old",) * 6
    counts = count_rollouts(old)
    assert counts["policy_too_old_with_4_to_7_calls"] == 1
    assert counts["policy_too_old_with_1_to_1_calls"] == 1
