"""A rollout reaches the processes and programs that work for it.

1. A process of multiprocessing joins the rollout that it was started in, as a producer of its own.
2. A task of a pool of processes works in the rollout that it was submitted in, and its worker keeps nothing.
3. A program that `subprocess` starts finds the rollout in its environment; ours is never changed.
4. What such a process records arrives where its parent's records go. Where it could not hide what its parent hides,
   it gets no rollout.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sdk.records import SourcedRecord
from support.client_records import bodies, of_kind, read_spool

PROLOGUE = """
import multiprocessing, os, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
import lightning_sdk as ls

def where(*_):
    here = ls.current_rollout()
    return here.rollout_id if here else None

def work(*_):
    ls.emit_reward(1)

@ls.trace_agent
def part(*_):
    ls.emit_reward(1)

class Worker(multiprocessing.get_context("spawn").Process):
    def run(self):
        if where():
            work()

def nowhere():
    assert where() is None

def run(process):
    process.start()
    process.join()
    assert process.exitcode == 0
    assert "run" not in vars(process)

def main():
"""


def run_file(directory: Path, main: str, **environment: str) -> list[SourcedRecord]:
    """Run a program whose function `main` is this; what it recorded in `home`."""
    code = PROLOGUE + "".join(f"    {line}\n" for line in main.strip().splitlines())
    path = directory / "program.py"
    path.write_text(code + '\nif __name__ == "__main__":\n    main()\n')
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", path.name],
        cwd=directory,
        env={"LIGHTNING_STRICT": "1", "PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (directory / ".lightning").exists(), "a process did not know where its parent records"
    return read_spool(directory / "home" / "spool")


def by_producer(records: list[SourcedRecord]) -> list[list[SourcedRecord]]:
    """The records of each process, those of the one that began the rollout first."""
    producers = dict.fromkeys(item.producer for item in records)
    found = [[item for item in records if item.producer == producer] for producer in producers]
    return sorted(found, key=lambda own: "rollout_start" not in bodies(own))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_joins_the_rollout_that_it_was_started_in(tmp_path: Path, method: str) -> None:
    records = run_file(
        tmp_path,
        f"""
ls.init(home="home", project="p")
with ls.rollout(rollout_id="a"):
    run(multiprocessing.get_context("{method}").Process(target=part, args=(1,)))
""",
    )
    parent, child = by_producer(records)
    assert {item.record.rollout_id for item in records} == {"a"}
    assert bodies(child)[:5] == ["join", "scope_start", "reward", "scope_end", "leave"]
    assert child[0].record.join.parent_producer == parent[0].producer
    assert child[0].record.join.parent_order == parent[1].record.order
    assert child[4].record.leave.count == 5


def test_a_process_of_a_class_of_its_own_joins_too(tmp_path: Path) -> None:
    records = run_file(
        tmp_path,
        """
ls.init(home="home")
with ls.rollout(rollout_id="a"):
    run(Worker())
run(Worker())
""",
    )
    rewards = [item.record for item in records if item.record.WhichOneof("body") == "reward"]
    assert [reward.rollout_id for reward in rewards] == ["a"]


@pytest.mark.parametrize("kind", ["executor", "pool"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_task_of_a_pool_works_where_it_was_submitted_and_its_worker_keeps_nothing(
    tmp_path: Path, method: str, kind: str
) -> None:
    pool = f'multiprocessing.get_context("{method}")'
    pool = f"{pool}.Pool(1)" if kind == "pool" else f"ProcessPoolExecutor(1, {pool})"
    records = run_file(
        tmp_path,
        f"""
ls.init(home="home")
with ls.rollout(rollout_id="a"):
    pool = {pool}
    assert list(pool.map(where, [1, 2])) == ["a", "a"]
    list(pool.map(work, [1, 2]))
with pool:
    assert list(pool.map(where, [1])) == [None]
    with ls.rollout(rollout_id="b"):
        assert list(pool.map(where, [1])) == ["b"]
        list(pool.map(part, [1]))
    with ls.rollout(rollout_id="a", attempt=2):
        list(pool.map(work, [1]))
    assert list(pool.map(where, [1])) == [None]
""",
    )
    _, worker = by_producer(records)
    own = [item for item in worker if (item.record.rollout_id, item.record.attempt) == ("a", 1)]
    # Joined and left once; what comes later is late.
    assert bodies(own) == ["join", "reward", "leave", "reward"]
    assert of_kind(own, "leave")[0].leave.count == 3
    assert bodies([item for item in worker if item.record.attempt == 2]) == ["join", "reward", "leave"]


PROGRAM = "import lightning_sdk as ls; ls.emit_reward(1); print(ls.current_rollout())"


def test_a_program_joins_the_rollout_that_it_was_started_in(tmp_path: Path) -> None:
    records = run_file(
        tmp_path,
        f"""
ls.init(home="home", token="a-secret-token")
before = dict(os.environ)
command = [sys.executable, "-c", {PROGRAM!r}]
with ls.rollout(rollout_id="a", task_id="7", split="train"):
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "rollout_id='a'" in told and "task_id='7'" in told and "split='train'" in told, told
    mine = dict(os.environ, MINE="1")
    subprocess.Popen(command, -1, None, None, subprocess.DEVNULL, None, None, True, False, None, mine).wait()
    assert "LIGHTNING_CONTEXT" not in mine
    shell = subprocess.check_output(["/bin/sh", "-c", "env"], text=True, env=mine)
    assert "MINE=1" in shell and "LIGHTNING_CONTEXT=" in shell and "a-secret" not in shell
    assert "LIGHTNING_CONTEXT" not in os.environ and dict(os.environ) == before
assert subprocess.run(command, capture_output=True, text=True, cwd="/").stdout == "None\\n"
""",
        HOME=str(tmp_path / "unused"),
    )
    _, *programs = by_producer(records)
    assert [bodies(own)[:3] for own in programs] == [["join", "reward", "leave"]] * 2


def test_a_program_of_a_program_belongs_to_it_too_and_its_own_rollouts_do_not(tmp_path: Path) -> None:
    inner = "import lightning_sdk as ls; ls.emit_reward(1)"
    outer = (
        "import subprocess, sys; import lightning_sdk as ls\n"
        f"command = [sys.executable, '-c', {inner!r}]\n"
        "subprocess.run(command, check=True)\n"
        "with ls.rollout(rollout_id='b'): subprocess.run(command, check=True)"
    )
    records = run_file(
        tmp_path,
        f"""
ls.init(home="home")
with ls.rollout(rollout_id="a"):
    subprocess.run([sys.executable, "-c", {outer!r}], check=True)
""",
    )
    rewards = of_kind(records, "reward")
    assert sorted(reward.rollout_id for reward in rewards) == ["a", "b"]


def test_what_a_hook_hides_is_not_recorded_by_a_process_without_it(tmp_path: Path) -> None:
    records = run_file(
        tmp_path,
        f"""
ls.init(home="home", redact=lambda body: body)
with ls.rollout():
    told = subprocess.run([sys.executable, "-c", {PROGRAM!r}], capture_output=True, text=True, cwd="/")
    assert told.stdout == "None\\n", told
    run(multiprocessing.get_context("spawn").Process(target=nowhere))
    run(multiprocessing.get_context("fork").Process(target=part))
ls.shutdown()
""",
        HOME=str(tmp_path / "unused"),
    )
    assert len(by_producer(records)) == 2
    assert of_kind(records, "counters")[-1].counters.values["contexts_withheld"] == 2


def test_a_variable_that_cannot_be_read_harms_nobody(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={"LIGHTNING_CONTEXT": "rollout=&attempt=x", "LIGHTNING_STRICT": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "None\n"
