"""`lsdk train` as a process with children of its own: who ends when, and what survives a death.

1. A collector that is killed in mid-run is started again, and nothing is lost.
2. Ctrl-C saves a checkpoint and says how to resume; the resumed run goes on.
3. Killed, it leaves no child behind.
4. A policy endpoint that is killed is started again and gets the present weights.
5. Rollouts that hang are cut at their timeout and counted.
6. Rollouts run on remote workers, which the run asks for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lightning_sdk.training.publishing import KeptPublisher
from lightning_sdk.training.services import Service, free_port, is_healthy, listens
from support.bandit import install_plugin
from support.tiny_model import save_tiny_model
from support.waiting import wait_until

PATIENCE_S = 60.0
TASKS = [{"id": f"t{number}", "question": f"which, {number}?", "right": "d"} for number in range(4)]
SMALL = ("learning.tasks_per_round=4", "learning.rollouts_per_task=4", "rollouts.workers=2")


class Train:
    """One `lsdk train` in a directory of its own."""

    def __init__(self, directory: Path, *arguments: str, settings: tuple[str, ...] = ()) -> None:
        self.home = directory / "home"
        self.run = self.home / "runs" / "run-1"
        options = [word for setting in settings for word in ("-o", setting)]
        path = os.pathsep.join([str(Path(__file__).parents[1]), str(directory / "plugins")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lightning_sdk", "train", *arguments, *options],
            cwd=directory,
            env={**os.environ, "LIGHTNING_HOME": str(self.home), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def rounds(self) -> list[dict[str, Any]]:
        if not (self.run / "metrics.jsonl").exists():
            return []
        lines = (self.run / "metrics.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if row["kind"] == "round"]

    def wait_rounds(self, count: int) -> None:
        def reached() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return len(self.rounds()) >= count

        wait_until(reached, PATIENCE_S)

    def finish(self, code: int = 0) -> tuple[str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == code, (out, err)
        return out, err


@contextmanager
def training(directory: Path, *arguments: str, settings: tuple[str, ...] = ()) -> Iterator[Train]:
    run = Train(directory, *arguments, settings=settings)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    install_plugin(tmp_path / "plugins")
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    return tmp_path


def new_run(agent: str) -> tuple[str, ...]:
    named = f"support.letter_agent:{agent}"
    return (named, "--tasks", "tasks.jsonl", "--model", "unused", "--backend", "bandit", "--run-id", "run-1")


def children_of(pid: int) -> set[int]:
    """It and all below it."""
    found = {pid}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found |= children_of(int(stat.parent.name))
    return found


def command_pid(train: Train, command: str) -> int:
    """Of the child that is `lsdk COMMAND`."""
    for pid in children_of(train.process.pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"lightning_sdk.training.child" in words and command.encode() in words:
            return pid
    raise AssertionError(f"no lsdk {command} runs")


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_killed_collector_is_started_again_and_ctrl_c_saves_what_a_resumed_run_goes_on_from(
    directory: Path,
) -> None:
    with training(directory, *new_run("guess"), settings=(*SMALL, "learning.max_idle_rounds=1000")) as first:
        first.wait_rounds(1)
        os.kill(command_pid(first, "collect"), signal.SIGKILL)
        first.wait_rounds(len(first.rounds()) + 3)
        first.process.send_signal(signal.SIGINT)
        out, err = first.finish(130)
    assert "lsdk collect died" in err
    assert "go on with: lsdk train --resume run-1" in out
    rounds = first.rounds()
    assert rounds[-1]["services/restarts"] == 1
    assert all(row["rollouts/lost"] == 0 and row["reward/rollouts"] == 16 for row in rounds)
    done = len(rounds)
    assert (first.run / "checkpoints" / f"round-{done:06d}").is_dir()
    with training(
        directory, "--resume", "run-1", "--json", settings=(f"learning.rounds={done + 2}",)
    ) as second:
        out, err = second.finish()
    told = json.loads(out)
    assert (told["rounds_done"], told["reason"], err) == (done + 2, "rounds", "")
    assert [row["rounds_done"] for row in second.rounds()] == list(range(1, done + 3))


def test_killed_it_leaves_no_child(directory: Path) -> None:
    with training(directory, *new_run("guess"), settings=(*SMALL, "learning.max_idle_rounds=1000")) as train:
        train.wait_rounds(1)
        family = children_of(train.process.pid)
        assert len(family) >= 4, "itself, a collector and two workers"
        train.process.kill()
        train.process.wait()
        wait_until(lambda: all(map(is_gone, family)), PATIENCE_S)


def test_a_rollout_that_hangs_is_cut_at_its_timeout_and_the_run_goes_on(directory: Path) -> None:
    tasks = [{**task, "trouble": "hang" if task["id"] == "t0" else None} for task in TASKS]
    (directory / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    settings = (*SMALL, "learning.rounds=1", "learning.rollouts_per_task=2", "rollouts.timeout_s=3")
    with training(directory, *new_run("troubled"), settings=settings) as train:
        train.finish()
    (told,) = train.rounds()
    assert told["rollouts/truncated"] == 2
    assert told["rollouts/succeeded"] == 6
    assert told["rollouts/without_call"] == 2
    assert told["rollouts/lost"] == 0


@pytest.mark.model
def test_a_killed_endpoint_is_started_again_with_the_present_weights(directory: Path) -> None:
    from lightning_sdk.policy.publisher import HttpPublisher

    model = save_tiny_model(directory / "model")
    (directory / "weights").mkdir()
    port = free_port()
    environment = {**os.environ, "LIGHTNING_ADMIN_TOKEN": "secret", "OMP_NUM_THREADS": "1"}
    service = Service(
        "serve",
        [
            *("serve", "--policy", f"policy={model}", "--port", str(port), "--threads", "1"),
            *("--weights-dir", str(directory / "weights")),
        ],
        port=port,
        is_ready=lambda: is_healthy(port),
        log=directory / "serve.log",
        environment=environment,
        restarts=1,
        start_timeout_s=PATIENCE_S,
        on_restart=lambda: publisher.again(),
    )
    http = HttpPublisher(f"http://127.0.0.1:{port}/v1", "secret", directory / "weights")
    publisher = KeptPublisher(http, directory / "published", wait_up=service.wait_up)
    service.start()
    try:
        publisher.publish("policy", model, version=7)
        assert version(port) == 7
        assert service.pid is not None
        os.kill(service.pid, signal.SIGKILL)
        wait_until(lambda: service.restarted == 1 and version(port) == 7, PATIENCE_S)
        publisher.publish("policy", model, version=8)
        assert version(port) == 8
    finally:
        service.close()


def test_a_service_that_died_just_now_is_waited_for_although_nobody_has_seen_it_yet(directory: Path) -> None:
    port = free_port()
    service = Service(
        "collect",
        ["collect", "--home", str(directory / "home"), "--port", str(port)],
        port=port,
        is_ready=lambda: listens(port),
        log=directory / "collect.log",
        environment=os.environ,
        restarts=1,
        start_timeout_s=PATIENCE_S,
    )
    service.start()
    try:
        assert service.pid is not None
        os.kill(service.pid, signal.SIGKILL)
        wait_until(lambda: not listens(port), PATIENCE_S)
        service.wait_up()
        assert service.restarted == 1
        assert listens(port)
    finally:
        service.close()


def version(port: int) -> int | None:
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            return json.load(answer)["policies"]["policy"]  # type: ignore[no-any-return]
    except OSError:
        return None


def test_remote_workers_run_the_agents_that_a_run_asks_for(directory: Path) -> None:
    settings = (*SMALL, "rollouts.kind=remote", "learning.rounds=2")
    with training(directory, *new_run("guess"), settings=settings) as run:
        assert run.process.stderr is not None
        asked = "lsdk: waiting for workers: lsdk "
        line = next(line for line in run.process.stderr if line.startswith(asked))
        # What it says to type starts the worker.
        command = line.removeprefix(asked).split()
        worker = subprocess.Popen(
            [sys.executable, "-m", "lightning_sdk", *command, "--slots", "2"],
            cwd=directory,
            env={
                **os.environ,
                "LIGHTNING_HOME": str(directory / "worker"),
                "PYTHONPATH": str(Path(__file__).parents[1]),
            },
        )
        try:
            run.finish()
        finally:
            worker.kill()
            worker.wait()
    rounds = run.rounds()
    assert [row["reward/rollouts"] for row in rounds] == [16, 16]
    assert all(row["rollouts/lost"] == 0 for row in rounds)
