"""`lsdk work` and `lsdk run --kind remote` as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_sdk.home import Home
from support.collectors import collector_process
from support.lsdk import refused
from support.waiting import wait_until

AGENT = """
import os, time
import lightning_sdk as ls

def solve(task):
    open("begun", "a").write("x")
    while os.path.exists("hold"):
        time.sleep(0.01)
    ls.emit_reward(1.0)
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "my_agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n')
    return tmp_path


def start(here: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lightning_sdk", *arguments],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str], *, error: bool = False) -> str:
    stream = process.stderr if error else process.stdout
    assert stream is not None
    return stream.readline()


def test_a_run_waits_for_workers_says_which_and_sigterm_lets_them_finish(here: Path) -> None:
    with collector_process(Home.locate(here / "collector")) as (_, target):
        endpoint = f"grpc://{target}"
        run = start(
            here,
            *("run", "my_agent:solve", "--tasks", "tasks.jsonl", "--kind", "remote", "--json"),
            *("--endpoint", endpoint),
        )
        assert line_of(run, error=True) == (
            f"waiting for workers: lsdk work --agent my_agent:solve --endpoint {endpoint}\n"
        )
        (here / "hold").touch()
        worker = start(here, "work", "--agent", "my_agent:solve", "--endpoint", endpoint, "--slots", "2")
        assert line_of(worker) == f"working for {endpoint}: my_agent:solve on 2 slots\n"
        begun = here / "begun"
        wait_until(lambda: begun.exists() and len(begun.read_text()) == 2, 60)
        worker.send_signal(signal.SIGTERM)
        assert line_of(worker, error=True) == "finishing 2 rollouts; once more to end them at once\n"
        (here / "hold").unlink()
        out, err = run.communicate(timeout=60)
        assert run.returncode == 0, err
        facts = json.loads(out)
        assert (facts["states"], facts["retries"]) == ({"succeeded": 2}, 0)
        assert (facts["rewarded"], facts["mean_reward"]) == (2, 1.0)
        out, err = worker.communicate(timeout=60)
        assert (worker.returncode, out) == (0, "2 rollouts done\n"), err
        assert len(list((Path(os.environ["LIGHTNING_HOME"]) / "work").glob("*/slot-*/*.log"))) == 2


def test_an_agent_that_cannot_be_imported_is_told_before_any_job_is_taken(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    line = refused(capsys, "work", "--agent", "my_agent:nobody", "--endpoint", "grpc://127.0.0.1:1")
    assert line == "lsdk: the module my_agent has no 'nobody', which my_agent:nobody names\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--endpoint", "grpc://h:1"], "Missing option '--agent'"),
        (["--agent", "my_agent:solve"], "Missing option '--endpoint'"),
        (["--agent", "my_agent:solve", "--endpoint", "http://h:1"], "is not of the form grpc://host:port"),
        (["--agent", "m:a", "--endpoint", "grpc://h:1", "--slots", "0"], "1<=x<=1024"),
    ],
)
def test_misuse_is_one_sentence(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(here)
    assert sentence in refused(capsys, "work", *arguments)
