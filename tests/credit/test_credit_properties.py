"""What holds of all data.

1. The order in which records arrive, and in which groups and rollouts are given, changes no number, to the last bit.
2. Cutting a rollout into more calls changes no statistic of a baseline.
3. Over a cell, entries minus leave-one-out baselines sum to 0; so do advantages of one call a rollout.
4. Returns are the sums of rewards; with gamma 1 what a turn is worth is what was bound from it on.
5. What is selected changes no credit and no baseline.
6. What an explanation tells of a credit adds up to it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sdk.mdp import Episode, Group, Transition, assemble, group_episodes
from lightning_sdk.mdp.advantages import Advantages, compute_advantages
from lightning_sdk.mdp.baseline.cells import cells_of, keys_by
from lightning_sdk.mdp.credit.discounted import discounted
from lightning_sdk.mdp.explain import explain_rollout
from lightning_sdk.mdp.select import Selection
from lightning_sdk.mdp.table import build_table
from support.credit_groups import call, group, rollout
from support.record_factory import Tape

AGENTS = ("solver", "critic")
REWARDS = st.one_of(st.sampled_from([0.0, 1.0, 0.1, 0.3]), st.floats(0, 1e6, allow_subnormal=False))
CALLS = st.lists(st.tuples(REWARDS, st.sampled_from(AGENTS), st.integers(1, 5)), min_size=1, max_size=5)
GROUPS = st.lists(st.lists(CALLS, min_size=1, max_size=4), min_size=1, max_size=3)


def by_step(transition: Transition) -> int:
    return transition.step


METHODS: list[tuple[str, dict[str, Any], str | None]] = [
    *(
        (credit, {}, baseline)
        for credit in ("broadcast", "per_call")
        for baseline in ("rloo", "grpo", "max_rl")
    ),
    ("broadcast", {}, "reinforce++"),
    ("broadcast", {}, "reinforce++_baseline"),
    ("broadcast_scope", {}, "dr_mas"),
    ("discounted", {"gamma": 0.9}, "mean"),
    ("turn_gae", {"values": lambda table: np.arange(table.calls) * 0.0 + 0.3, "lam": 0.9}, None),
    ("gigpo", {"state_key": by_step, "normalise": True}, None),
    ("hgpo", {"state_key": by_step}, None),
]


def made(drawn: list[list[list[tuple[float, str, int]]]]) -> list[Group]:
    return [
        group(
            *(
                rollout(
                    f"{at}.{which}", *(call(reward, agent, tokens=tokens) for reward, agent, tokens in calls)
                )
                for which, calls in enumerate(rollouts)
            ),
            group_id=f"g{at}",
        )
        for at, rollouts in enumerate(drawn)
    ]


def by_call(result: Advantages) -> dict[tuple[str, int], tuple[bytes, str | None]]:
    """Every number of every call, to the last bit."""
    columns = np.stack([result.credit_C, result.baseline_C, result.scale_C, result.advantage_C], axis=1)
    return {
        (transition.call_id, transition.choice): (columns[row].tobytes(), result.reason_C[row])
        for row, transition in enumerate(result.table.transitions)
    }


@pytest.mark.parametrize(("credit", "params", "baseline"), METHODS)
@settings(max_examples=25, deadline=None)
@given(drawn=GROUPS, data=st.data())
def test_the_order_of_groups_and_rollouts_changes_no_bit(
    credit: str, params: dict[str, Any], baseline: str | None, drawn: Any, data: st.DataObject
) -> None:
    groups = made(drawn)
    shuffled = [
        Group(group_id=each.group_id, episodes=data.draw(st.permutations(each.episodes)))
        for each in data.draw(st.permutations(groups))
    ]
    one = compute_advantages(groups, credit=credit, credit_params=params, baseline=baseline)
    other = compute_advantages(shuffled, credit=credit, credit_params=params, baseline=baseline)
    assert by_call(one) == by_call(other)
    assert one.counts == other.counts


def tapes() -> list[Tape]:
    """Two rollouts of a group and one of another: nested scopes, rewards bound in every way, a failure."""
    found = []
    for which, (group_id, value) in enumerate([("g", 1.0), ("g", 0.25), ("h", 0.5)]):
        tape = Tape(f"p{which}", rollout=f"ro_{which}", group=group_id, second=100 * which)
        tape.start()
        tape.open_scope(f"outer{which}", "solver")
        tape.engine_call(f"a{which}", [1, 2], [3, 4], scope=f"outer{which}", agent="solver")
        tape.open_scope(f"inner{which}", "critic", parent=f"outer{which}")
        tape.engine_call(f"b{which}", [1, 2, 3, 4, 5], [6], scope=f"inner{which}", agent="critic")
        tape.reward(0.1 * value, "scope", scope=f"inner{which}")
        tape.close_scope(f"inner{which}")
        tape.engine_call(f"c{which}", [1, 2, 3, 4, 9], [7, 8, 9], scope=f"outer{which}", agent="solver")
        tape.close_scope(f"outer{which}")
        tape.reward(value, "rollout")
        tape.finish("error" if which == 1 else "ok")
        found.append(tape)
    return found


RECORDS = [record for tape in tapes() for record in tape.records]


@pytest.mark.parametrize(("credit", "params", "baseline"), METHODS)
@settings(max_examples=5, deadline=None)
@given(arrived=st.permutations(RECORDS))
def test_the_order_in_which_records_arrive_changes_no_bit(
    credit: str, params: dict[str, Any], baseline: str | None, arrived: Any
) -> None:
    def of(records: Any) -> Advantages:
        groups = group_episodes(assemble(records))
        return compute_advantages(groups, credit=credit, credit_params=params, baseline=baseline)

    one, other = of(RECORDS), of(arrived)
    assert len(one.table.transitions) == 9
    assert by_call(one) == by_call(other)


@pytest.mark.parametrize("baseline", ["rloo", "mean", "grpo", "dr_grpo", "dr_mas", "max_rl"])
@settings(max_examples=25, deadline=None)
@given(drawn=GROUPS, pieces=st.lists(st.integers(1, 4), min_size=64, max_size=64))
def test_cutting_a_rollout_into_more_calls_changes_no_statistic(
    baseline: str, drawn: Any, pieces: list[int]
) -> None:
    def statistics(groups: list[Group]) -> dict[tuple[Any, ...], tuple[float, float]]:
        result = compute_advantages(groups, baseline=baseline)
        table = result.table
        return {
            (table.episodes[table.episode_C[row]].rollout_id, table.agents[table.agent_C[row]]): (
                float(result.baseline_C[row]),
                float(result.scale_C[row]),
            )
            for row in range(table.calls)
        }

    sizes = iter(pieces * 10)
    # The reward of a call goes to its last piece, so that the return is that of before.
    cut = [
        [
            [
                (reward if piece == 0 else 0.0, agent, tokens)
                for reward, agent, tokens in calls
                for piece in reversed(range(next(sizes)))
            ]
            for calls in rollouts
        ]
        for rollouts in drawn
    ]
    assert statistics(made(drawn)) == statistics(made(cut))


@settings(max_examples=50, deadline=None)
@given(drawn=GROUPS, credit=st.sampled_from(["broadcast", "per_call", "discounted"]))
def test_leave_one_out_sums_to_0_over_a_cell(drawn: Any, credit: str) -> None:
    result = compute_advantages(made(drawn), credit=credit, baseline_params={"lone_agent": "zero"})
    table = result.table
    for cell in cells_of(table, result.credit_C, keys_by(table, "agent")).values():
        baseline_of = {int(table.episode_C[row]): float(result.baseline_C[row]) for row in cell.rows}
        if any(result.reason_C[row] for row in cell.rows):
            assert not result.advantage_C[list(cell.rows)].any()
            continue
        left = math.fsum(
            entry - baseline_of[episode] for episode, entry in zip(cell.episodes, cell.entries, strict=True)
        )
        assert left == pytest.approx(0, abs=1e-9 * (1 + max(map(abs, cell.entries))))


@settings(max_examples=50, deadline=None)
@given(returns=st.lists(REWARDS, min_size=2, max_size=8))
def test_leave_one_out_is_what_a_double_loop_gives(returns: list[float]) -> None:
    result = compute_advantages(
        [group(*(rollout(str(at), call(), extra=value) for at, value in enumerate(returns)))]
    )
    for at, value in enumerate(returns):
        others = [Fraction(other) for which, other in enumerate(returns) if which != at]
        expected = value - float(sum(others, Fraction(0)) / len(others))
        assert result.advantage_C[at] == (0.0 if min(returns) == max(returns) else expected)


@settings(max_examples=50, deadline=None)
@given(drawn=GROUPS, extra=st.one_of(st.none(), st.floats(-10, 10)))
def test_returns_are_sums_of_rewards(drawn: Any, extra: float | None) -> None:
    episodes: list[Episode] = [
        rollout(f"{at}.{which}", *(call(reward, agent) for reward, agent, _ in calls), extra=extra)
        for at, rollouts in enumerate(drawn)
        for which, calls in enumerate(rollouts)
    ]
    table = build_table([group(*episodes)])
    value_C = discounted(table)
    for at, episode in enumerate(episodes):
        assert table.return_E[at] == math.fsum(event.value for event in episode.rewards)
        rows = list(table.calls_of(at))
        bound = math.fsum(table.reward_C[rows])
        assert table.return_E[at] == pytest.approx(bound + (extra or 0.0), rel=1e-12, abs=1e-9)
        for place, row in enumerate(rows):
            later = math.fsum(table.reward_C[rows[place:]])
            assert value_C[row] == pytest.approx(later, rel=1e-12)


@pytest.mark.parametrize(
    ("credit", "params", "baseline"), [each for each in METHODS if each[2] != "reinforce++"]
)
@settings(max_examples=15, deadline=None)
@given(drawn=GROUPS, agents=st.sampled_from(["solver", "critic", "nobody"]), max_tokens=st.integers(4, 8))
def test_what_is_selected_changes_no_credit_and_no_baseline(
    credit: str, params: dict[str, Any], baseline: str | None, drawn: Any, agents: str, max_tokens: int
) -> None:
    groups = made(drawn)
    whole = compute_advantages(groups, credit=credit, credit_params=params, baseline=baseline)
    part = compute_advantages(
        groups,
        credit=credit,
        credit_params=params,
        baseline=baseline,
        selection=Selection(agents=agents, max_tokens=max_tokens),
    )
    np.testing.assert_array_equal(whole.credit_C, part.credit_C)
    if baseline != "reinforce++_baseline":  # whitening is over what is trained
        np.testing.assert_array_equal(whole.baseline_C, part.baseline_C)
        np.testing.assert_array_equal(whole.advantage_C, part.advantage_C)
    assert not (part.in_loss_C & ~whole.in_loss_C).any()


@pytest.mark.parametrize(
    ("credit", "params"),
    [
        ("per_call", {}),
        ("discounted", {"gamma": 0.9}),
        ("broadcast_scope", {}),
        ("gigpo", {"state_key": by_step, "weight": 0.5}),
        ("gigpo", {"state_key": by_step, "normalise": True}),
        ("hgpo", {"state_key": by_step, "history": 3}),
        ("hgpo", {"state_key": lambda each: each.agent, "normalise": False}),
    ],
)
@settings(max_examples=25, deadline=None)
@given(drawn=GROUPS)
def test_what_is_told_of_a_credit_adds_up_to_it(credit: str, params: dict[str, Any], drawn: Any) -> None:
    groups = [*made(drawn), *group_episodes(assemble(RECORDS))]
    for each in groups:
        for episode in each.episodes:
            told = explain_rollout(each, episode.rollout_id or "", credit=credit, credit_params=params)
            for worth in told.calls:
                if worth.credit is not None:
                    parts = [term.factor * term.value for term in worth.terms]
                    assert math.isclose(sum(parts), worth.credit, rel_tol=1e-9, abs_tol=1e-9)


def test_the_history_of_hgpo_may_be_longer_than_any_rollout() -> None:
    groups = made([[[(1.0, "solver", 1), (0.5, "solver", 1)], [(0.0, "solver", 1), (0.0, "solver", 1)]]])
    short, long = (
        compute_advantages(groups, credit="hgpo", credit_params={"state_key": by_step, "history": history})
        for history in (1, 10**9)
    )
    assert by_call(short) == by_call(long)
