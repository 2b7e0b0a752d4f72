"""Which tasks a round takes, when a run ends, and what a checkpoint keeps.

1. The tasks of a round follow from seed and round alone; a pass takes no task twice.
2. A run ends at its rounds, its target, when patience is out, and when nothing could be trained on for a while.
3. A checkpoint is there whole or not at all, and the latest few stay.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_sdk.errors import ConfigError, RunError
from lightning_sdk.home import Home
from lightning_sdk.rollouts.tasks import Task
from lightning_sdk.training.batches import Batches
from lightning_sdk.training.settings import LearningTable, Settings, ValidationTable
from lightning_sdk.training.state import RunDirectory, RunState
from lightning_sdk.training.stopping import Stopping


def tasks(count: int, **weights: float) -> list[Task]:
    return [
        Task(task_id=f"t{index}", input=index, weight=weights.get(f"t{index}", 1.0)) for index in range(count)
    ]


def ids(batch: list[Task]) -> list[str]:
    return [task.task_id for task in batch]


def test_a_pass_takes_every_task_once_and_the_next_another_order() -> None:
    batches = Batches(tasks(12), 4, seed=1, shuffle=True)
    first = [name for round_ in range(3) for name in ids(batches.of_round(round_))]
    second = [name for round_ in range(3, 6) for name in ids(batches.of_round(round_))]
    assert sorted(first) == sorted(second) == sorted(ids(tasks(12)))
    assert first != second


def test_the_tasks_of_a_round_depend_on_nothing_that_came_before() -> None:
    assert ids(Batches(tasks(12), 5, seed=1, shuffle=True).of_round(7)) == ids(
        Batches(tasks(12), 5, seed=1, shuffle=True).of_round(7)
    )
    assert ids(Batches(tasks(12), 5, seed=1, shuffle=True).of_round(7)) != ids(
        Batches(tasks(12), 5, seed=2, shuffle=True).of_round(7)
    )


def test_without_shuffling_tasks_come_in_their_order() -> None:
    batches = Batches(tasks(5), 2, seed=1, shuffle=False)
    assert [ids(batches.of_round(round_)) for round_ in range(3)] == [
        ["t0", "t1"],
        ["t2", "t3"],
        ["t0", "t1"],
    ]


def test_heavy_tasks_come_more_often_and_those_of_weight_0_never() -> None:
    batches = Batches(tasks(6, t0=20.0, t5=0.0), 2, seed=1, shuffle=True)
    rounds = [ids(batches.of_round(round_)) for round_ in range(200)]
    assert all(len(set(names)) == 2 for names in rounds)
    assert not any("t5" in names for names in rounds)
    assert sum("t0" in names for names in rounds) > 180


def test_few_tasks_make_small_rounds_unless_more_are_asked_for() -> None:
    assert Batches(tasks(5), None, seed=1, shuffle=True).size == 5
    assert Batches(tasks(50), None, seed=1, shuffle=True).size == 16
    with pytest.raises(ConfigError, match=r"tasks_per_round is 6 and there are 5 tasks"):
        Batches(tasks(5), 6, seed=1, shuffle=True)


def learning(**values: int) -> LearningTable:
    return LearningTable.model_validate(values)


def test_a_run_ends_with_its_rounds() -> None:
    stopping = Stopping()
    assert stopping.reason(4, learning(rounds=5), ValidationTable()) is None
    assert stopping.reason(5, learning(rounds=5), ValidationTable()) == "rounds"


def test_a_run_ends_at_its_target() -> None:
    stopping, table = Stopping(), ValidationTable.model_validate({"target": 0.9})
    assert stopping.validated(5, 0.5)
    assert stopping.reason(5, learning(), table) is None
    assert stopping.validated(10, 0.95)
    assert stopping.reason(10, learning(), table) == "target"


def test_a_run_ends_when_no_validation_is_better_any_more() -> None:
    stopping, table = Stopping(), ValidationTable.model_validate({"patience": 2})
    for rounds_done, reward in ((0, 0.5), (5, 0.7), (10, 0.6)):
        stopping.validated(rounds_done, reward)
        assert stopping.reason(rounds_done, learning(), table) is None
    stopping.validated(15, 0.7)
    assert stopping.reason(15, learning(), table) == "patience"
    assert (stopping.best, stopping.best_round) == (0.7, 5)


def test_a_validation_without_rewards_is_none() -> None:
    stopping = Stopping()
    assert not stopping.validated(5, None)
    assert stopping.best is None
    assert stopping.stale == 0


def test_a_run_ends_when_nothing_was_trained_on_for_some_rounds_in_a_row() -> None:
    stopping = Stopping()
    stopping.trained(0, {"no_reward": 3})
    stopping.trained(12, {})
    stopping.trained(0, {"no_reward": 3, "failed": 1})
    assert stopping.reason(3, learning(max_idle_rounds=2), ValidationTable()) is None
    stopping.trained(0, {"no_reward": 4})
    assert stopping.reason(4, learning(max_idle_rounds=2), ValidationTable()) == "nothing_to_train_on"
    assert stopping.idle_reasons == {"no_reward": 7, "failed": 1}


def save(directory: RunDirectory, state: RunState, text: str) -> None:
    (directory.begin_checkpoint() / "weights").write_text(text)
    directory.finish_checkpoint(state, keep=2)


def test_a_checkpoint_gives_back_what_was_saved(tmp_path: Path) -> None:
    state = RunState(rounds_done=7, versions={"a": 6}, validated_at=5)
    state.stopping.validated(5, 0.5)
    state.stopping.trained(0, {"no_reward": 2})
    with RunDirectory.create(Home.locate(tmp_path), "run-1", Settings()) as directory:
        assert directory.latest() is None
        save(directory, state, "seven")
        found = directory.latest()
        assert found is not None
        assert found[0] == state
        assert (found[1] / "weights").read_text() == "seven"


def test_the_latest_checkpoints_stay(tmp_path: Path) -> None:
    with RunDirectory.create(Home.locate(tmp_path), "run-1", Settings()) as directory:
        for rounds_done in (1, 2, 10):
            save(directory, RunState(rounds_done=rounds_done), str(rounds_done))
        assert [path.name for path in directory.checkpoints()] == ["round-000002", "round-000010"]


def test_a_checkpoint_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    with RunDirectory.create(Home.locate(tmp_path), "run-1", Settings()) as directory:
        save(directory, RunState(rounds_done=1), "one")
        (directory.begin_checkpoint() / "weights").write_text("half of tw")
        found = directory.latest()
        assert found is not None
        assert found[0].rounds_done == 1
        save(directory, RunState(rounds_done=2), "two")
        assert {path.name for path in (directory.path / "checkpoints").iterdir()} == {
            "round-000001",
            "round-000002",
        }


def test_a_resumed_run_forgets_the_metrics_of_rounds_that_come_again(tmp_path: Path) -> None:
    with RunDirectory.create(Home.locate(tmp_path), "run-1", Settings()) as directory:
        rows = [("validation", 0), ("round", 1), ("round", 2), ("validation", 2), ("round", 3)]
        lines = [json.dumps({"kind": kind, "rounds_done": number}) for kind, number in rows]
        directory.metrics.write_text("\n".join(lines) + '\n{"kind": "rou')
        directory.forget_after(RunState(rounds_done=2, validated_at=0))
        assert directory.metrics.read_text().splitlines() == lines[:3]


def test_a_run_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    home = Home.locate(tmp_path)
    with (
        RunDirectory.create(home, "run-1", Settings()),
        pytest.raises(RunError, match="is running in another process"),
        RunDirectory.reopen(home, "run-1"),
    ):
        pass


def test_a_run_id_is_taken_once_and_an_unknown_one_is_told(tmp_path: Path) -> None:
    home = Home.locate(tmp_path)
    with RunDirectory.create(home, "run-1", Settings()):
        pass
    with pytest.raises(ConfigError, match="--resume run-1"), RunDirectory.create(home, "run-1", Settings()):
        pass
    with (
        pytest.raises(ConfigError, match=r"no run 'run-2' .* there are run-1"),
        RunDirectory.reopen(home, "run-2"),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="cannot name a directory"),
        RunDirectory.create(home, "../run", Settings()),
    ):
        pass


@pytest.mark.parametrize("run_id", ["../run", "my run", ".hidden", "läufer", ""])
def test_a_run_id_that_the_journal_refuses_is_refused_before_anything_is_made(
    tmp_path: Path, run_id: str
) -> None:
    home = Home.locate(tmp_path / "home")
    with (
        pytest.raises(ConfigError, match="cannot name a directory"),
        RunDirectory.create(home, run_id, Settings()),
    ):
        pass
    with pytest.raises(ConfigError, match="cannot name a directory"):
        RunDirectory.stored_settings(home, run_id)
    assert not home.path.exists()
