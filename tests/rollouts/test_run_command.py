"""`lsdk run` as a user types it: a directory with an agent and a file of tasks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sdk.home import Home
from support.collectors import collector_process
from support.waiting import wait_until

AGENT = """
import os, time
import lightning_sdk as ls

def solve(task):
    while os.path.exists("hold"):
        time.sleep(0.01)
    ls.emit_reward(task["value"])
    if task.get("bad"):
        raise ValueError("bad task")

async def solve_later(task):
    solve(task)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "my_agent.py").write_text(AGENT)
    write_tasks(tmp_path / "tasks.jsonl", {"id": "a", "value": 1}, {"id": "b", "value": 2})
    return tmp_path


def write_tasks(path: Path, *rows: object) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def start(here: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lightning_sdk", *arguments],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lsdk(here: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(here, *arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_it_runs_each_task_n_times_and_prints_one_line(here: Path) -> None:
    code, out, err = lsdk(
        here, "run", "my_agent:solve", "--tasks", "tasks.jsonl", "-n", "2", "--workers", "2"
    )
    assert (code, err) == (0, "")
    (line,) = out.splitlines()
    assert line.startswith("run run_")
    assert ": 4 rollouts in " in line
    assert line.endswith(": succeeded 4; mean reward 1.5")


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_json_tells_what_became_of_it_in_every_kind(here: Path, kind: str) -> None:
    write_tasks(here / "more.jsonl", {"id": "a", "value": 4, "bad": True})
    code, out, err = lsdk(
        here,
        *("run", "my_agent:solve_later", "--tasks", "tasks.jsonl:2", "--tasks", "more.jsonl", "--kind", kind),
        *("--run-id", "run_x", "--split", "train", "--json"),
    )
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["run_id"] == "run_x"
    assert facts["states"] == {"succeeded": 4, "failed": 1}
    assert facts["errors"] == {"ValueError: bad task": 1}
    assert (facts["rewarded"], facts["mean_reward"]) == (5, 2.0)


def test_a_collector_gets_the_rollouts(here: Path) -> None:
    with collector_process(Home.locate(here / "collector")) as (_, endpoint):
        code, out, err = lsdk(
            here,
            "run",
            "my_agent:solve",
            "--tasks",
            "tasks.jsonl",
            "--endpoint",
            f"grpc://{endpoint}",
            "--workers",
            "1",
        )
        assert (code, err) == (0, "")
        assert out.strip().endswith("succeeded 2; mean reward 1.5")


def test_an_interrupt_stops_the_run_says_how_to_resume_and_that_works(here: Path) -> None:
    (here / "hold").touch()
    process = start(
        here, "run", "my_agent:solve", "--tasks", "tasks.jsonl", "--run-id", "run_x", "--workers", "1"
    )
    journal = Path(os.environ["LIGHTNING_HOME"]) / "runs" / "run_x" / "journal.jsonl"
    wait_until(lambda: journal.exists() and b'"started"' in journal.read_bytes())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "queued 2" in out
    assert err.endswith("2 rollouts left: lsdk run --resume run_x\n")
    (here / "hold").unlink()
    code, out, err = lsdk(here, "run", "--resume", "run_x", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["states"] == {"succeeded": 2}
    assert json.loads(out)["mean_reward"] == 1.5


def test_a_run_of_failures_is_given_up_with_the_error(here: Path) -> None:
    write_tasks(here / "bad.jsonl", *({"id": str(n), "value": 0, "bad": True} for n in range(30)))
    code, out, err = lsdk(
        here, "run", "my_agent:solve", "--tasks", "bad.jsonl", "--kind", "threads", "--workers", "1"
    )
    assert code == 1
    assert "10 of 10 rollouts ended badly" in err
    assert "the commonest error is ValueError: bad task (10 times)" in err
    assert "--retry-failed" in err
    assert "queued 20" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["my_agent:solve"], "no tasks are given: --tasks FILE, or --resume RUN_ID"),
        (["--tasks", "tasks.jsonl"], "no agent is given, and not every task names one"),
        (["my_agent:solve", "--tasks", "none.jsonl"], "there is no file none.jsonl"),
        (["my_agent:nobody", "--tasks", "tasks.jsonl"], "the module my_agent has no 'nobody'"),
        (
            ["nowhere:solve", "--tasks", "tasks.jsonl"],
            "there is no module 'nowhere' for the agent nowhere:solve",
        ),
        (["my_agent:solve", "--tasks", "tasks.jsonl:-1"], "a weight is a number above 0"),
        (
            ["my_agent:solve", "--tasks", "tasks.jsonl", "--kind", "threads", "--timeout", "1"],
            "a timeout cannot be kept",
        ),
        (
            ["my_agent:solve", "--tasks", "tasks.jsonl", "--agents", "writer"],
            "--agents needs --policy-endpoint",
        ),
        (["--resume", "run_none"], "there is no run 'run_none'"),
        (["--resume", "x", "--tasks", "tasks.jsonl"], "--resume goes on with the run's own tasks"),
    ],
)
def test_misuse_is_one_sentence_and_exit_code_2(here: Path, arguments: list[str], sentence: str) -> None:
    code, out, err = lsdk(here, "run", *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert sentence in err
