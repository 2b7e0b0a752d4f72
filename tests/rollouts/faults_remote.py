"""Killing each part of a remote run in the middle of it, for real (`nox -s faults`).

Whatever is killed: every rollout ends with a state that says so, has one episode, and none runs twice in one attempt.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.collector.reader import open_reader
from lightning_sdk.home import Home
from lightning_sdk.mdp import Episode
from support.collectors import spawn_collector
from support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
ROLLOUTS = 12
AGENT = """
import os, pathlib, random, time
import lightning_sdk as ls

def solve(task):
    scope = ls.current_rollout()
    name = f"{scope.rollout_id}-{os.getpid()}-{time.time_ns()}"
    pathlib.Path("begun", name).touch()
    while os.path.exists("hold"):
        time.sleep(0.02)
    time.sleep(random.random() * 0.3)
    ls.emit_reward(VALUE)
    pathlib.Path("ended", name).touch()
"""


class Place:
    """A directory with an agent and tasks, a collector, and whatever else a test starts there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[subprocess.Popen[str]] = []
        for name in ("begun", "ended"):
            (path / name).mkdir()
        self.write_agent(1.0)
        (path / "tasks.jsonl").write_text("".join(f'{{"id": "{n}"}}\n' for n in range(ROLLOUTS)))
        self.home = Home.locate(path / "collector")
        self.collector = self.start_collector(0)

    def write_agent(self, value: float) -> None:
        (self.path / "my_agent.py").write_text(AGENT.replace("VALUE", str(value)))

    def start_collector(self, port: int) -> subprocess.Popen[str]:
        process = spawn_collector(self.home, port)
        self.processes.append(process)
        assert process.stdout is not None
        self.endpoint = process.stdout.readline().strip()
        return process

    def start(self, *arguments: str, home: str = "home") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-B", "-m", "lightning_sdk", *arguments, "--endpoint", self.endpoint],
            cwd=self.path,
            env={**os.environ, "LIGHTNING_HOME": str(self.path / home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def start_worker(self, name: str, slots: int = 2) -> subprocess.Popen[str]:
        return self.start("work", "--agent", "my_agent:solve", "--slots", str(slots), home=name)

    def start_run(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start(
            *("run", "my_agent:solve", "--tasks", "tasks.jsonl", "--kind", "remote", "--run-id", "run_x"),
            *("--max-attempts", "4", "--json", *arguments),
        )

    def resume_run(self) -> subprocess.Popen[str]:
        return self.start("run", "--resume", "run_x", "--json")

    def count(self, what: str) -> int:
        return len(list((self.path / what).iterdir()))

    def wait_for(self, what: str, count: int) -> None:
        wait_until(lambda: self.count(what) >= count, 120)

    def end(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            with contextlib.suppress(ValueError):
                process.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.end()


def finish(run: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    facts: dict[str, Any] = json.loads(out)
    assert facts["states"] == {"succeeded": ROLLOUTS}
    return facts


def episodes(place: Place) -> list[Episode]:
    """One for each rollout, each with the outcome and the one reward of the attempt that counts."""
    reader = open_reader(place.home, endpoint=place.endpoint)
    try:
        found = list(reader.read_episodes(RolloutQuery(run_id="run_x")))
    finally:
        reader.close()
    assert len({episode.rollout_id for episode in found}) == len(found) == ROLLOUTS
    assert Counter(episode.outcome for episode in found) == {"succeeded": ROLLOUTS}
    assert all(len(episode.rewards) == 1 for episode in found)
    return found


def test_a_worker_is_killed_gets_new_code_and_is_started_again(place: Place) -> None:
    (place.path / "hold").touch()
    run, worker = place.start_run(), place.start_worker("worker")
    place.wait_for("begun", 2)
    worker.send_signal(signal.SIGKILL)
    place.write_agent(2.0)
    (place.path / "hold").unlink()
    place.start_worker("worker")
    facts = finish(run)
    assert facts["retries"] == 2
    assert place.count("begun") == ROLLOUTS + 2
    assert {episode.return_ for episode in episodes(place)} == {2.0}


@pytest.mark.parametrize("away_s", [0, 25], ids=["at once", "later than leases expire"])
def test_the_collector_is_killed_and_started_again(place: Place, away_s: int) -> None:
    (place.path / "hold").touch()
    run = place.start_run()
    for name in ("one", "two"):
        place.start_worker(name)
    place.wait_for("begun", 4)
    port = int(place.endpoint.rpartition(":")[2])
    place.collector.send_signal(signal.SIGKILL)
    place.collector.communicate()
    (place.path / "hold").unlink()
    # What ran ends while nobody listens.
    place.wait_for("ended", 4)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(away_s or 0.1)
    place.collector = place.start_collector(port)
    facts = finish(run)
    assert (facts["retries"], facts["late_results"]) == (0, 0)
    assert place.count("begun") == place.count("ended") == ROLLOUTS
    episodes(place)


def test_the_runner_is_killed_and_resumed(place: Place) -> None:
    (place.path / "hold").touch()
    run, _ = place.start_run(), place.start_worker("worker")
    place.wait_for("begun", 2)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    again = place.resume_run()
    # What ran for the dead runner is ended, before or after; its slots are then free for the new one.
    place.wait_for("begun", 4)
    (place.path / "hold").unlink()
    finish(again)
    # The two that ran for the dead runner have run again, as their second attempts.
    assert place.count("begun") == ROLLOUTS + 2
    assert place.count("ended") == ROLLOUTS
    episodes(place)


def test_a_worker_that_is_stopped_for_a_while_comes_back_too_late(place: Place) -> None:
    (place.path / "hold").touch()
    run, frozen = place.start_run(), place.start_worker("frozen")
    place.wait_for("begun", 2)
    frozen.send_signal(signal.SIGSTOP)
    place.start_worker("other")
    # Its rollouts have been given up and begun again elsewhere, beside what the other worker has begun anyway.
    journal = place.path / "home" / "runs" / "run_x" / "journal.jsonl"
    wait_until(lambda: journal.read_text().count('"outcome":"lost"') == 2, 120)
    (place.path / "hold").unlink()
    place.wait_for("ended", 4)
    frozen.send_signal(signal.SIGCONT)
    facts = finish(run)
    assert facts["retries"] == 2
    episodes(place)
