"""What a training row says of each of its tokens.

1. A row is the last prompt of its chain and the response to it; every token is told with its mask, log
   probability, advantage, policy version and call. What is not trained or not known says so.
2. Tokens of a parent that another row trains are context here.
3. A trained token weighs (1/R)(1/N_i): R rollouts of the update, N_i trained tokens of its rollout.
"""

from __future__ import annotations

import numpy as np
import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp import Episode, assemble
from lightning_sdk.mdp.sequences import build_rows, split_row, weight_rows
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
