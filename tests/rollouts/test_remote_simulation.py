"""Runners, workers and broker under faults by chance, on a clock and a network of the test's own."""

from __future__ import annotations

import pytest

from support.work_simulation import Simulation


@pytest.mark.parametrize("block", range(4))
def test_whatever_breaks_each_attempt_runs_once_at_most_and_each_rollout_ends(block: int) -> None:
    lost = 0
    for seed in range(block * 20, block * 20 + 20):
        simulation = Simulation(seed)
        for _ in range(1000):
            simulation.step(faults=True)
        simulation.settle()
        assert max(simulation.begun.values()) == 1, seed
        assert all(len(results) == 1 for results in simulation.results.values()), seed
        for key, (result,) in simulation.results.items():
            # What a runner is told to have ended so has ended so; nothing else is told but the loss.
            assert result.outcome in ("lost", simulation.ended.get(key)), seed
            lost += result.outcome == "lost"
    assert lost > 0


def test_without_faults_every_rollout_has_one_attempt() -> None:
    for seed in range(20):
        simulation = Simulation(seed)
        simulation.settle()
        assert set(simulation.begun.values()) == {1}
        assert {attempt for _, attempt in simulation.results} == {1}


def test_a_broker_that_is_restarted_loses_nothing() -> None:
    for seed in range(40):
        simulation = Simulation(seed)
        for _ in range(5):
            for _ in range(60):
                simulation.step(faults=False)
            simulation.restart_broker()
        simulation.settle()
        assert {result.outcome for (result,) in simulation.results.values()} <= {"succeeded", "failed"}, seed
        assert set(simulation.begun.values()) == {1}, seed
