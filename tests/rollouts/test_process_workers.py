"""Processes: whatever an agent does there, each rollout has its result and its end, and the next one is unharmed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.collector.reader import open_reader
from lightning_sdk.home import Home
from lightning_sdk.mdp import Episode, assemble
from lightning_sdk.rollouts.job import Result
from lightning_sdk.rollouts.plan import FinishedRollout, RunOptions
from lightning_sdk.rollouts.retries import RetryRule
from lightning_sdk.rollouts.runner import Runner
from lightning_sdk.rollouts.tasks import load_tasks
from lightning_sdk.rollouts.workers.processes import ProcessWorkers
from support.waiting import wait_until

TESTS = str(Path(__file__).parents[1])
AGENTS = (
    *("plain", "traced", "coroutine", "generator", "own_loop", "forking", "fork_that_comes_back", "printing"),
    *("exiting", "exiting_well", "exiting_at_once", "crashing", "failing", "hanging_in_c", "closing_output"),
    *("leaking_a_thread", "leaking_a_process"),
)


def environment(home: Path) -> dict[str, str]:
    return {"PYTHONPATH": TESTS, "LIGHTNING_HOME": str(home), "LIGHTNING_STRICT": "1"}


def episodes(home: Path) -> dict[str, Episode]:
    """What is stored, by rollout."""
    reader = open_reader(Home.locate(home))
    try:
        stored = [record for _, records in reader.read_rollouts(RolloutQuery()) for record in records]
    finally:
        reader.close()
    return {episode.rollout_id or "": episode for episode in assemble(stored)}


def processes_of(home: Path) -> list[str]:
    """The processes that have this state directory."""
    found = subprocess.run(
        ["grep", "-lazsF", f"LIGHTNING_HOME={home}", *map(str, Path("/proc").glob("[0-9]*/environ"))],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.splitlines()


class Run:
    """One run of all agents, on two processes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.results: list[Result] = []
        rows = [{"id": name, "agent": f"support.rollout_agents:{name}"} for name in AGENTS]
        workers = ProcessWorkers(2, output=home / "output", environment=environment(home))
        options = RunOptions(timeout_s=3.0, max_failures=1.0, retry=RetryRule(backoff_s=0.0))
        with Runner(
            workers, options, home=home, on_result=lambda result, _: self.results.append(result)
        ) as runner:
            runner.submit(load_tasks(rows))
            self.rollouts: dict[str, FinishedRollout] = {}
            self.summary = runner.run(
                lambda group: self.rollouts.update({group.task.task_id: group.rollouts[0]})
            )
            self.journal = (runner.directory / "journal.jsonl").read_text()
        self.episodes = episodes(home)

    def episode(self, name: str) -> Episode:
        return self.episodes[self.rollouts[name].rollout_id]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    return Run(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "plain",
            "traced",
            "coroutine",
            "generator",
            "own_loop",
            "forking",
            "fork_that_comes_back",
            "printing",
        ),
        *("exiting_well", "closing_output", "leaking_a_thread", "leaking_a_process"),
    ],
)
def test_an_agent_of_any_kind_succeeds_with_its_reward(run: Run, name: str) -> None:
    assert (run.rollouts[name].outcome, run.rollouts[name].attempts) == ("succeeded", 1)
    assert (run.episode(name).outcome, run.episode(name).return_) == ("succeeded", 1.0)


def test_what_an_agent_prints_goes_to_a_file_of_the_run(run: Run) -> None:
    printed = "".join(path.read_text() for path in (run.home / "output").iterdir())
    assert printed.count('{"result": {}}') == 1000
    assert "to standard error" in printed


def test_an_exception_is_kept_with_its_traceback_and_without_secrets(run: Run) -> None:
    result = run.rollouts["failing"].result
    assert result is not None
    assert (result.outcome, result.error_type) == ("failed", "ValueError")
    assert result.error_message is not None
    assert result.error_message.startswith("no such answer; the key was ")
    assert result.traceback is not None
    assert result.traceback.splitlines()[1].endswith("in failing")
    assert "abcdefghijklmnopqrstuvwxyz" not in run.journal
    assert run.episode("failing").outcome == "failed"
    assert run.episode("failing").error == f"ValueError: {result.error_message}"


def test_an_agent_that_exits_with_an_error_has_failed(run: Run) -> None:
    result = run.rollouts["exiting"].result
    assert result is not None
    assert (result.outcome, result.error_message) == ("failed", "the agent called sys.exit(3)")
    assert run.episode("exiting").outcome == "failed"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exiting_at_once", "its process ended with exit status 7 in the middle of the rollout"),
        ("crashing", "its process was killed by SIGSEGV"),
    ],
)
def test_a_process_that_dies_loses_its_rollout_which_is_tried_again_and_told_of(
    run: Run, name: str, message: str
) -> None:
    rollout = run.rollouts[name]
    assert (rollout.outcome, rollout.attempts) == ("lost", 2)
    assert rollout.result is not None
    assert rollout.result.error_message == message
    assert (run.episode(name).outcome, run.episode(name).attempt) == ("lost", 2)


def test_a_timeout_ends_what_hangs_in_c_and_keeps_what_was_recorded(run: Run) -> None:
    rollout = run.rollouts["hanging_in_c"]
    assert (rollout.outcome, rollout.attempts) == ("truncated", 1)
    assert rollout.result is not None
    assert rollout.result.error_message == "its time of 3 s was up: its process was killed"
    assert (run.episode("hanging_in_c").outcome, run.episode("hanging_in_c").return_) == ("truncated", 0.25)


def test_no_rollout_is_left_running_and_none_is_doubled(run: Run) -> None:
    assert {episode.outcome for episode in run.episodes.values()} == {
        "succeeded",
        "failed",
        "truncated",
        "lost",
    }
    assert sorted(run.episodes) == sorted(each.rollout_id for each in run.rollouts.values())
    assert sum(run.summary.states.values()) == len(AGENTS)


def test_nothing_of_a_process_is_left_when_the_workers_are_closed(run: Run) -> None:
    assert not processes_of(run.home)


def test_a_rollout_that_is_cancelled_by_stopping_is_queued_again_and_its_end_told(tmp_path: Path) -> None:
    workers = ProcessWorkers(1, environment=environment(tmp_path))
    options = RunOptions(agent="support.rollout_agents:waiting")
    with Runner(workers, options, home=tmp_path) as runner:
        runner.submit(load_tasks([{"id": "a", "until": str(tmp_path / "never")}]))
        wait_until(lambda: any(tmp_path.glob("spool/*.seg")))
        runner.stop()
        assert runner.summary().states == {"queued": 1}
    (episode,) = episodes(tmp_path).values()
    assert episode.outcome == "cancelled"


def test_the_same_rollout_draws_the_same_numbers_and_another_one_others(tmp_path: Path) -> None:
    returns = []
    for home in (tmp_path / "one", tmp_path / "two"):
        workers = ProcessWorkers(1, environment=environment(home))
        with Runner(workers, RunOptions(agent="support.rollout_agents:drawing"), home=home) as runner:
            runner.submit(load_tasks([{"id": "a"}]), 2)
            (rollouts,) = [group.rollouts for group in iter(lambda: runner.wait_group(), None)]
        found = episodes(home)
        returns.append([found[each.rollout_id].return_ for each in rollouts])
    assert returns[0] == returns[1]
    assert returns[0][0] != returns[0][1]


def test_an_agent_does_not_get_the_tokens_of_whoever_publishes_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["LIGHTNING_ADMIN_TOKEN", "LIGHTNING_UPSTREAM_TOKEN", "KEY_OF_THE_AGENT"]
    for name in names:
        monkeypatch.setenv(name, "secret")
    workers = ProcessWorkers(1, environment=environment(tmp_path))
    options = RunOptions(agent="support.rollout_agents:telling_its_variables")
    with Runner(workers, options, home=tmp_path) as runner:
        runner.submit(load_tasks([{"id": "a", "names": names}]))
        runner.run()
    (episode,) = episodes(tmp_path).values()
    assert [dict(each.components) for each in episode.rewards] == [{"KEY_OF_THE_AGENT": 1.0}]


def test_a_worker_whose_runner_was_killed_dies_too(tmp_path: Path) -> None:
    program = (
        "from lightning_sdk.rollouts.runner import *; from lightning_sdk.rollouts.tasks import load_tasks\n"
        "from lightning_sdk.rollouts.workers.processes import ProcessWorkers\n"
        "options = RunOptions(agent='support.rollout_agents:hanging_in_c')\n"
        "r = Runner(ProcessWorkers(1), options)\n"
        "r.submit(load_tasks([1])); r.run()\n"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **environment(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: any(tmp_path.glob("spool/*.seg")))
    finally:
        runner.kill()
        runner.wait()
    wait_until(lambda: not processes_of(tmp_path))
