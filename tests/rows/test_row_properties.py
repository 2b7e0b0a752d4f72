"""What holds of any rollout whatever, over small ids so that prompts begin with each other often.

1. The parent is what comparing with every earlier call finds.
2. The order in which transitions come is nothing.
3. Every sampled token that is trained is trained once, and the calls can be taken out of the rows again.
4. Cut into one row a call, the rows weigh what they weighed; each rollout weighs 1/R.
5. Packing puts everything somewhere once, within the budget, and near the bound.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.mdp import Episode, Transition, assemble
from lightning_sdk.mdp.chains import build_chains
from lightning_sdk.mdp.packing import plan_updates
from lightning_sdk.mdp.sequences import Row, build_rows, split_row, weight_rows
from support.record_factory import Tape
from support.row_factory import advantages_of

Key = tuple[str, int]


@dataclass(frozen=True)
class Sampled:
    """A call of a drawn rollout."""

    policy: str
    prompt: tuple[int, ...]
    responses: tuple[tuple[int, ...], ...]
    trained: bool


@functools.cache
def template() -> Episode:
    tape = Tape()
    tape.engine_call("a", [1], [2])
    return assemble(tape.records)[0]


ids = st.lists(st.integers(0, 2), max_size=3).map(tuple)
some_ids = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)


@st.composite
def rollouts(draw: st.DrawFn) -> list[Sampled]:
    calls: list[Sampled] = []
    for _ in range(draw(st.integers(0, 9))):
        policy = draw(st.sampled_from("PPPQ"))
        prompt = draw(some_ids)
        if calls and draw(st.booleans()):
            earlier = draw(st.sampled_from(calls))
            policy = earlier.policy
            prompt = earlier.prompt
            if draw(st.integers(0, 3)):
                prompt += draw(st.sampled_from(earlier.responses)) + draw(ids)
        responses = draw(st.lists(some_ids, min_size=1, max_size=draw(st.sampled_from([1, 1, 3]))))
        calls.append(Sampled(policy, prompt, tuple(responses), draw(st.integers(0, 3)) > 0))
    return calls


def to_episode(calls: Sequence[Sampled], rollout_id: str = "ro_1") -> Episode:
    episode = template()
    transitions = [
        replace(
            episode.transitions[0],
            rollout_id=rollout_id,
            step=step,
            call_id=f"{rollout_id}-{step}",
            choice=choice,
            policy=call.policy,
            policy_version=step,
            policy_version_end=step,
            prompt_token_ids=call.prompt,
            response_token_ids=response,
            response_logprobs=[-float(step)] * len(response),
            drop_reason=None if call.trained else "error",
        )
        for step, call in enumerate(calls)
        for choice, response in enumerate(call.responses)
    ]
    return replace(episode, rollout_id=rollout_id, group_id=rollout_id, transitions=transitions)


def key(transition: Transition) -> Key:
    return (transition.call_id, transition.choice)


def rows_of(*episodes: Episode) -> list[Row]:
    values = {each.call_id: float(each.step + 1) for episode in episodes for each in episode.transitions}
    return build_rows(advantages_of(episodes, values=values))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(rollouts())
def test_the_parent_is_what_comparing_with_every_earlier_call_finds(calls: list[Sampled]) -> None:
    forest = build_chains(to_episode(calls).transitions)
    for each, parent in zip(forest.transitions, forest.parents, strict=True):
        fitting = [
            (len(call.prompt + response), step, -choice)
            for step, call in enumerate(calls[: each.step])
            for choice, response in enumerate(call.responses)
            if call.policy == each.policy
            and tuple(each.prompt_token_ids or ())[: len(call.prompt + response)] == call.prompt + response
        ]
        found = None if parent is None else forest.transitions[parent]
        expected = max(fitting, default=None)
        assert (found and (found.step, found.choice)) == (expected and (expected[1], -expected[2]))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(rollouts(), st.randoms(use_true_random=False))
def test_the_order_in_which_transitions_come_is_nothing(calls: list[Sampled], random: object) -> None:
    transitions = list(to_episode(calls).transitions)
    shuffled = transitions.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    def told(given: list[Transition]) -> object:
        forest = build_chains(given)
        chains = forest.lay_out([each.drop_reason is None for each in given])
        broken = {key(each): why for each, why in zip(given, forest.find_breaks(), strict=True)}
        return [([key(given[at]) for at in chain.nodes], chain.first_own) for chain in chains], broken

    assert told(transitions) == told(shuffled)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(rollouts())
def test_every_trained_token_is_trained_once_and_calls_come_out_as_they_went_in(calls: list[Sampled]) -> None:
    episode = to_episode(calls)
    rows = rows_of(episode)
    trained = {key(each): each for each in episode.transitions if each.drop_reason is None}
    assert sorted(call for row in rows for call in row.calls) == sorted(trained)
    assert sum(row.trained_tokens for row in rows) == sum(
        len(each.response_token_ids or ()) for each in trained.values()
    )
    for row in rows:
        assert row.loss_mask_T[-1]
        for call in split_row(row):
            each = trained[call.call_id, call.choice]
            assert tuple(call.prompt_token_ids_P) == each.prompt_token_ids
            assert tuple(call.response_token_ids_S) == each.response_token_ids
            assert set(call.behaviour_logprobs_S) == {-float(each.step)}
            assert set(call.advantages_S) == {each.step + 1.0}
        np.testing.assert_array_equal(row.loss_mask_T, row.call_T >= 0)
        np.testing.assert_array_equal(row.loss_mask_T, ~np.isnan(row.behaviour_logprobs_T))
        np.testing.assert_array_equal(row.loss_mask_T, row.advantages_T != 0)
        np.testing.assert_array_equal(row.loss_mask_T, row.policy_versions_T >= 0)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.lists(rollouts(), max_size=4))
def test_cut_into_calls_the_rows_weigh_what_they_weighed(drawn: list[list[Sampled]]) -> None:
    one_policy = [[replace(call, policy="P") for call in calls] for calls in drawn]
    rows = rows_of(*(to_episode(calls, f"ro_{at}") for at, calls in enumerate(one_policy)))
    weights = weight_rows(rows)
    cut = [cut_out(row, index) for row in rows for index in range(len(row.calls))]
    of_call = dict(zip([row.calls[0] for row in cut], weight_rows(cut), strict=True))
    rollouts_here = {row.rollout_id for row in rows}
    totals = dict.fromkeys(rollouts_here, 0.0)
    for row, weight in zip(rows, weights, strict=True):
        assert {of_call[call] for call in row.calls} == {weight}
        totals[row.rollout_id] += weight * row.trained_tokens
    np.testing.assert_allclose(list(totals.values()), 1 / max(len(rollouts_here), 1))


def cut_out(row: Row, index: int) -> Row:
    """A row of one call alone."""
    sampled = row.call_T == index
    stop = int(np.flatnonzero(sampled)[-1]) + 1
    return replace(
        row,
        token_ids_T=row.token_ids_T[:stop],
        loss_mask_T=sampled[:stop],
        behaviour_logprobs_T=np.where(sampled, row.behaviour_logprobs_T, np.nan)[:stop],
        advantages_T=np.where(sampled, row.advantages_T, 0.0)[:stop],
        policy_versions_T=np.where(sampled, row.policy_versions_T, -1)[:stop],
        call_T=np.where(sampled, 0, -1)[:stop].astype(np.int32),
        calls=(row.calls[index],),
    )


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.lists(rollouts(), max_size=5), st.integers(1, 3), st.integers(40, 80))
def test_updates_hold_whole_rollouts_of_one_policy_and_every_row_once(
    drawn: list[list[Sampled]], size: int, budget: int
) -> None:
    # At most nine turns of nine tokens.
    budget += 60
    rows = rows_of(*(to_episode(calls, f"ro_{at}") for at, calls in enumerate(drawn)))
    updates = plan_updates(rows, token_budget=budget, rollouts_per_update=size)
    assert sorted(id(row) for update in updates for row in update.rows) == sorted(map(id, rows))
    homes: dict[tuple[str | None, str | None], int] = {}
    for number, update in enumerate(updates):
        assert {row.policy for row in update.rows} == {update.policy}
        assert len({row.rollout_id for row in update.rows}) <= size
        for row in update.rows:
            assert homes.setdefault((update.policy, row.rollout_id), number) == number
        assert sorted(at for batch in update.micro_batches for at in batch) == list(range(len(update.rows)))
        for batch in update.micro_batches:
            assert sum(update.rows[at].length for at in batch) <= budget
        total = sum(
            weight * row.trained_tokens
            for weight, row in zip(update.token_weight_R, update.rows, strict=True)
        )
        np.testing.assert_allclose(total, 1.0)
