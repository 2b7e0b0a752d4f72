"""The loop with real parts: a collector, the bandit's own endpoint, the openai client, records by gRPC.

1. A policy learns, and the run tells how.
2. Ahead of the trainer, no call is older than allowed, and nothing is dropped for its age.
3. A run ends at its target, and where nothing can be trained on, with the reasons.
4. A resumed run goes on from the last checkpoint, with the tasks that come next and without a rollout twice.
5. What agents do wrong is counted.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import lightning_sdk as ls
from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli.reading import load
from lightning_sdk.collector.reader import RemoteReader
from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.errors import AgentError, ConfigError, RunError
from lightning_sdk.ids import new_id
from lightning_sdk.rollouts.tasks import load_tasks
from lightning_sdk.training.batches import Batches
from lightning_sdk.training.run import TrainingResult
from support.bandit import install_plugin
from support.collectors import collector_thread

TASKS = [{"id": f"t{number}", "question": f"which, {number}?", "right": "d"} for number in range(6)]


Train = Callable[..., TrainingResult]


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One for all runs: that a run starts its own is another file's matter."""
    store = SqliteStore(tmp_path_factory.mktemp("collector") / "traces.db")
    with collector_thread(store) as address:
        yield f"grpc://{address}"
    store.close()


@pytest.fixture(autouse=True)
def _bandit_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(install_plugin(tmp_path / "plugins")))
    # A client that other tests left records elsewhere.
    ls.shutdown()
    yield
    assert ls.client.runtime.configured() is None, "the run left a client behind"


@pytest.fixture
def train(collector: str) -> Train:
    def run(agent: str = "guess", *, tasks: Any = TASKS, **tables: Any) -> TrainingResult:
        options = {
            name: tables.pop(name) for name in ("run_id", "resume", "validation_tasks") if name in tables
        }
        settings = {**tables, "services": {"endpoint": collector}}
        if "resume" not in options:
            usual = {"rounds": 4, "tasks_per_round": 3, "rollouts_per_task": 4}
            settings["learning"] = {**usual, **tables.get("learning", {})}
            settings["rollouts"] = {"kind": "threads", "workers": 4, **tables.get("rollouts", {})}
        return ls.train(
            f"support.letter_agent:{agent}",
            tasks=tasks,
            model="unused",
            backend="bandit",
            validation=options.pop("validation_tasks", None),
            settings=settings,
            **options,
        )

    return run


@pytest.fixture
def run_id() -> str:
    """Rollouts are named by their run, and all runs here share a store."""
    return new_id("run")


def rows(result: TrainingResult, kind: str = "round") -> list[dict[str, Any]]:
    lines = (result.directory / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def journal(result: TrainingResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.directory / "journal.jsonl").read_text().splitlines()]


def test_a_policy_learns_and_the_run_tells_how(train: Train) -> None:
    result = train(
        validation_tasks=TASKS,
        learning={"rounds": 12, "max_idle_rounds": 12},
        validation={"every": 6, "sampling": "training"},
    )
    assert result.reason == "rounds"
    told = rows(result)
    assert [row["rounds_done"] for row in told] == list(range(1, 13))
    assert told[0]["trainer/probability_of_d"] < 0.7 < told[-1]["trainer/probability_of_d"]
    assert all(row["reward/rollouts"] == 12 and row["rollouts/succeeded"] == 12 for row in told)
    assert all(row["policy_age/max"] == 0 for row in told)
    assert all(row["rollouts/lost"] == 0 for row in told)
    assert [row["rounds_done"] for row in rows(result, "validation")] == [0, 6, 12]
    assert result.best is not None
    assert result.best > 0.5
    assert (
        json.loads((result.models["policy"] / "bandit.json").read_text())["version"]
        == result.versions["policy"]
    )
    assert (result.directory / "best" / "policy").is_dir()
    assert "user: which, " in (result.directory / "samples" / "round-000001.txt").read_text()
    assert result.curves[0].read_text().count("polyline") == 2


def test_training_rollouts_are_sampled_as_trained_and_validation_as_the_agent_asks(
    train: Train, collector: str
) -> None:
    """The agent asks for temperature 0, so its validation is off distribution, as training would be too."""
    result = train(validation_tasks=TASKS[:1], learning={"rounds": 1}, validation={"every": 1})
    with closing(RemoteReader(collector)) as reader:
        (training, validation) = (
            {
                transition.sampling["effective"]["temperature"]
                for each in load(reader, RolloutQuery(run_id=result.run_id))
                for transition in each.episode.transitions
                if transition.split == split
            }
            for split in ("train", "validation")
        )
    assert training == {1.0}
    assert validation == {0}


def test_ahead_of_the_trainer_no_call_is_older_than_allowed_and_nothing_is_dropped_for_it(
    train: Train,
) -> None:
    tasks = [{**task, "seconds": 0.05 * (number % 3)} for number, task in enumerate(TASKS)]
    result = train("guess_slowly", tasks=tasks, learning={"rounds": 6, "max_age": 1, "max_idle_rounds": 6})
    told = rows(result)
    ages = [row["policy_age/max"] for row in told]
    assert max(ages) == 1, "rollouts of the next round ran while this one was trained on"
    assert not any("dropped/policy_too_old" in row for row in told)
    assert [row["reward/rollouts"] for row in told] == [12] * 6


def test_a_run_ends_at_its_target(train: Train) -> None:
    result = train(
        validation_tasks=TASKS[:2],
        learning={"rounds": 60, "max_idle_rounds": 60},
        validation={"every": 2, "target": 1.0, "rollouts_per_task": 1},
    )
    assert result.reason == "target"
    assert result.best == 1.0
    assert result.rounds_done < 60


def test_a_run_where_nothing_can_be_trained_on_stops_and_says_why(train: Train) -> None:
    result = train("unrewarded", learning={"rounds": 50, "max_idle_rounds": 2})
    assert result.reason == "nothing_to_train_on"
    assert result.rounds_done == 2
    assert result.versions == {"policy": 0}
    assert result.idle_reasons["no_reward"] == 2 * 12
    assert result.idle_reasons["without_reward"] == 2 * 12


def test_what_agents_do_wrong_is_counted(train: Train) -> None:
    troubles = ["raise", "silent", None]
    tasks = [{**task, "trouble": troubles[number % 3]} for number, task in enumerate(TASKS)]
    told = rows(train("troubled", tasks=tasks, learning={"rounds": 1, "tasks_per_round": 6}))[0]
    assert told["rollouts/failed"] == 8
    assert told["rollouts/without_call"] == 16
    assert told["rollouts/succeeded"] == 16
    assert told["errors/ValueError"] == 8
    assert told["calls/calls"] == 8


def test_a_resumed_run_goes_on_with_the_next_tasks_and_runs_no_rollout_twice(
    train: Train, run_id: str
) -> None:
    """The trainer fails in its fourth round; the last checkpoint is of the second."""
    with pytest.raises(RuntimeError, match="was told to fail"):
        train(
            run_id=run_id,
            run={"checkpoint_every": 2},
            learning={"rounds": 6, "max_idle_rounds": 6},
            backend={"fail_at": 3, "learning_rate": 0.1},
        )
    result = train(resume=run_id, backend={"fail_at": -1})
    assert result.reason == "rounds"
    assert [row["rounds_done"] for row in rows(result)] == [1, 2, 3, 4, 5, 6]
    versions = [row["trainer/policy_version"] for row in rows(result)]
    assert versions == sorted(versions)
    assert versions[-1] > 3, "the trainer failed at version 3 and went on from there"
    groups = {(each["round"], each["task"]["task_id"]) for each in journal(result) if each["type"] == "group"}
    batches = Batches(load_tasks(TASKS), 3, seed=0, shuffle=True)
    assert groups == {(number, task.task_id) for number in range(6) for task in batches.of_round(number)}
    started = [each["rollout_id"] for each in journal(result) if each["type"] == "started"]
    assert len(started) == len(set(started)) == 6 * 12


def test_a_resumed_run_learns_the_same_as_without_the_break(train: Train, run_id: str) -> None:
    """What was lost with a kill is the trainer's: the rollouts are stored, so every number comes again."""
    first = train(run_id=run_id, run={"checkpoint_every": 1, "keep_checkpoints": 9}, learning={"rounds": 4})
    learned = [{name: row[name] for name in row if name.startswith("trainer/")} for row in rows(first)]
    started = [each for each in journal(first) if each["type"] == "started"]
    for lost in ("round-000003", "round-000004"):
        shutil.rmtree(first.directory / "checkpoints" / lost)
    again = train(resume=run_id)
    assert [
        {name: row[name] for name in row if name.startswith("trainer/")} for row in rows(again)
    ] == learned
    assert [each for each in journal(again) if each["type"] == "started"] == started


def test_a_run_that_is_over_is_over_when_it_is_resumed(train: Train, run_id: str) -> None:
    first = train(run_id=run_id, learning={"rounds": 1})
    again = train(resume=run_id)
    assert again.rounds_done == first.rounds_done == 1
    assert len(rows(again)) == 1


def test_an_agent_that_cannot_be_imported_ends_the_run_at_once(train: Train) -> None:
    with pytest.raises((RunError, AgentError), match=r"no module 'support\.no_agent'"):
        ls.train(
            "support.no_agent:solve",
            tasks=TASKS,
            model="unused",
            backend="bandit",
            settings={"rollouts": {"kind": "threads"}},
        )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"validation": {"target": 0.9}}, "need held-out tasks"),
        ({"learning": {"tasks_per_round": 7}}, "tasks_per_round is 7 and there are 6 tasks"),
        ({"rollouts": {"kind": "threads", "timeout_s": 5.0}}, "a timeout cannot be kept by the kind threads"),
        ({"rollouts": {"kind": "fibers"}}, "fibers"),
        ({"backend": {"learning_rates": 1.0}}, "did you mean 'learning_rate'"),
    ],
)
def test_settings_that_cannot_be_are_refused(train: Train, changed: dict[str, Any], told: str) -> None:
    with pytest.raises((ConfigError, RunError), match=r".") as refused:
        train(**changed)
    assert told in str(refused.value)


def test_importing_lightning_sdk_imports_no_training() -> None:
    import subprocess

    code = "import sys, lightning_sdk; sys.exit(any('training' in name or 'numpy' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
