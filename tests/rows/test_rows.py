"""What a training row says of each of its tokens.

1. A row is the last prompt of its chain and the response to it; every token is told with its mask, log
   probability, advantage, policy version and call. What is not trained or not known says so.
2. Tokens of a parent that another row trains are context here.
3. A trained token weighs (1/R)(1/N_i): R rollouts of the update, N_i trained tokens of its rollout.
4. Under dr_grpo it weighs (1/R)(1/L), L a constant that is asked for.
"""

from __future__ import annotations

import numpy as np
import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp import Episode, assemble, group_episodes
from lightning_sdk.mdp.advantages import compute_advantages
from lightning_sdk.mdp.packing import plan_updates
from lightning_sdk.mdp.sequences import Row, build_rows, split_row, weight_rows
from support.record_factory import Tape
from support.row_factory import advantages_of

NAN = float("nan")


def policy_call(
    tape: Tape, call_id: str, prompt: list[int], response: list[int], version: int = 0, **fields: object
) -> None:
    tape.tokens(
        call_id,
        prompt,
        response,
        logprobs=[[-token / 4 for token in response]],
        version=version,
        **fields,
    )
    tape.call(call_id, endpoint_call_id=call_id)


def two_turns(name: str = "p", rollout: str = "ro_1") -> list[Episode]:
    tape = Tape(name, rollout=rollout)
    policy_call(tape, f"{name}a", [1, 2], [3, 4], version=7)
    policy_call(tape, f"{name}b", [1, 2, 3, 4, 5], [6], version=8)
    return assemble(tape.records)


def test_a_row_says_everything_of_each_token() -> None:
    (row,) = build_rows(advantages_of(two_turns(), values={"pa": 0.5, "pb": -2.0}))
    assert (row.rollout_id, row.policy, row.fidelity) == ("ro_1", "policy", "engine")
    assert (row.length, row.trained_tokens) == (6, 3)
    assert row.calls == (("pa", 0), ("pb", 0))
    assert row.token_ids_T.dtype == np.int32
    np.testing.assert_array_equal(row.token_ids_T, [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(row.loss_mask_T, [0, 0, 1, 1, 0, 1])
    np.testing.assert_array_equal(row.behaviour_logprobs_T, [NAN, NAN, -0.75, -1, NAN, -1.5])
    np.testing.assert_array_equal(row.advantages_T, [0, 0, 0.5, 0.5, 0, -2])
    np.testing.assert_array_equal(row.policy_versions_T, [-1, -1, 7, 7, -1, 8])
    np.testing.assert_array_equal(row.call_T, [-1, -1, 0, 0, -1, 1])


def test_a_branch_carries_its_parent_as_context() -> None:
    tape = Tape()
    policy_call(tape, "a", [1], [2])
    policy_call(tape, "b", [1, 2, 3], [4])
    policy_call(tape, "c", [1, 2, 5], [6, 7])
    first, second = build_rows(advantages_of(assemble(tape.records)))
    assert first.calls == (("a", 0), ("b", 0))
    assert second.calls == (("c", 0),)
    np.testing.assert_array_equal(second.token_ids_T, [1, 2, 5, 6, 7])
    np.testing.assert_array_equal(second.loss_mask_T, [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(second.call_T, [-1, -1, -1, 0, 0])


def test_an_untrained_call_in_the_middle_of_a_chain_is_context() -> None:
    tape = Tape()
    policy_call(tape, "a", [1], [2])
    policy_call(tape, "b", [1, 2, 3], [4])
    policy_call(tape, "c", [1, 2, 3, 4, 5], [6])
    (row,) = build_rows(advantages_of(assemble(tape.records), trained=lambda each: each.call_id != "b"))
    np.testing.assert_array_equal(row.loss_mask_T, [0, 1, 0, 0, 0, 1])
    assert row.calls == (("a", 0), ("c", 0))


def test_weights_that_changed_within_a_call_are_known_at_its_ends_only() -> None:
    tape = Tape()
    policy_call(tape, "a", [1], [2, 3, 4], version=7, policy_version_end=8)
    policy_call(tape, "b", [9], [5], version=7, policy_version_end=8)
    first, second = build_rows(advantages_of(assemble(tape.records)))
    np.testing.assert_array_equal(first.policy_versions_T, [-1, 7, -1, 8])
    np.testing.assert_array_equal(second.policy_versions_T, [-1, 7])


def test_log_probabilities_that_nobody_told_are_not_zero() -> None:
    tape = Tape()
    tape.engine_call("a", [1], [2, 3])
    (row,) = build_rows(advantages_of(assemble(tape.records)))
    assert row.policy is None
    assert np.isnan(row.behaviour_logprobs_T).all()
    np.testing.assert_array_equal(row.policy_versions_T, [-1, -1, -1])


def test_there_is_no_row_without_a_trained_token() -> None:
    assert build_rows(advantages_of(two_turns(), trained=lambda each: False)) == []
    assert build_rows(advantages_of([])) == []


def test_a_row_taken_apart_gives_back_its_calls() -> None:
    (row,) = build_rows(advantages_of(two_turns(), values={"pa": 0.5, "pb": -2.0}))
    first, second = split_row(row)
    assert (first.call_id, first.choice, second.call_id) == ("pa", 0, "pb")
    np.testing.assert_array_equal(first.prompt_token_ids_P, [1, 2])
    np.testing.assert_array_equal(first.response_token_ids_S, [3, 4])
    np.testing.assert_array_equal(first.behaviour_logprobs_S, [-0.75, -1])
    np.testing.assert_array_equal(second.prompt_token_ids_P, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(second.response_token_ids_S, [6])
    np.testing.assert_array_equal(second.advantages_S, [-2])


def test_a_sequence_level_ratio_by_call_is_the_same_in_one_row_and_in_two() -> None:
    (row,) = build_rows(advantages_of(two_turns()))
    log_ratio_T = np.arange(6, dtype=np.float64)
    by_call = [log_ratio_T[row.call_T == call].mean() for call in range(len(row.calls))]
    assert by_call == [2.5, 5.0]  # (2 + 3) / 2 and 5; by row it would be 10 / 3


def test_a_rollout_weighs_one_however_many_tokens_and_rows_it_has() -> None:
    tape = Tape("q", rollout="ro_2")
    policy_call(tape, "x", [1], [2])
    policy_call(tape, "y", [9], [3, 4, 5])
    rows = build_rows(advantages_of([*two_turns(), *assemble(tape.records)]))
    assert [row.trained_tokens for row in rows] == [3, 1, 3]
    # Two rollouts of 3 and of 1 + 3 trained tokens.
    np.testing.assert_allclose(weight_rows(rows), [1 / 6, 1 / 8, 1 / 8])
    assert weight_rows([]).shape == (0,)


def test_rows_of_two_policies_are_no_update() -> None:
    tape = Tape("q", rollout="ro_2")
    policy_call(tape, "x", [1], [2], policy="other")
    rows = build_rows(advantages_of([*two_turns(), *assemble(tape.records)]))
    with pytest.raises(ConfigError, match="other, policy"):
        weight_rows(rows)


def dr_grpo_rows() -> list[Row]:
    """The rows of two rollouts of one group, of 3 and of 1 + 3 trained tokens, with the returns 1 and 0."""
    tapes = [Tape("p", rollout="ro_1"), Tape("q", rollout="ro_2")]
    policy_call(tapes[0], "pa", [1, 2], [3, 4])
    policy_call(tapes[0], "pb", [1, 2, 3, 4, 5], [6])
    policy_call(tapes[1], "x", [1], [2])
    policy_call(tapes[1], "y", [9], [3, 4, 5])
    for tape, value in zip(tapes, [1.0, 0.0], strict=True):
        tape.reward(value, "rollout")
        tape.end()
    episodes = assemble(item for tape in tapes for item in tape.records)
    return build_rows(compute_advantages(group_episodes(episodes), baseline="dr_grpo"))


def test_under_dr_grpo_every_token_of_an_update_weighs_the_same() -> None:
    rows = dr_grpo_rows()
    # The mean of the returns is 0.5.
    assert [set(row.advantages_T[row.loss_mask_T]) for row in rows] == [{0.5}, {-0.5}, {-0.5}]
    # R = 2 rollouts, L = 10: 1 / (2 x 10), however many tokens a rollout has.
    np.testing.assert_allclose(weight_rows(rows, constant_length=10), [0.05, 0.05, 0.05])
    # (1/2) x (3 x 0.5 / 10 + 4 x -0.5 / 10): the longer rollout weighs more.
    total = sum(
        weight * row.advantages_T.sum()
        for weight, row in zip(weight_rows(rows, constant_length=10), rows, strict=True)
    )
    assert total == pytest.approx(-0.025)


def test_updates_keep_what_dr_grpo_asks_for() -> None:
    first, second = plan_updates(dr_grpo_rows(), token_budget=10, rollouts_per_update=1, constant_length=10)
    # R = 1 in each.
    np.testing.assert_allclose(first.token_weight_R, [0.1])
    np.testing.assert_allclose(second.token_weight_R, [0.1, 0.1])


def test_a_constant_length_is_asked_for_where_it_counts_and_refused_where_it_does_not() -> None:
    with pytest.raises(ConfigError, match="give constant_length"):
        weight_rows(dr_grpo_rows())
    with pytest.raises(ConfigError, match="give constant_length"):
        plan_updates(dr_grpo_rows(), token_budget=10)
    with pytest.raises(ConfigError, match="constant_length is 0"):
        weight_rows(dr_grpo_rows(), constant_length=0)
    with pytest.raises(ConfigError, match="constant_length=5 does nothing"):
        weight_rows(build_rows(advantages_of(two_turns())), constant_length=5)


def test_rows_with_two_kinds_of_loss_are_no_update() -> None:
    with pytest.raises(ConfigError, match="rollout_mean and token_sum"):
        weight_rows([*dr_grpo_rows(), *build_rows(advantages_of(two_turns("z", "ro_z")))], constant_length=5)
