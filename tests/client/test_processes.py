"""Whole programs: without a collector, interrupted, and forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.client_records import bodies, of_kind, read_spool

PROGRAM = """
import lightning_sdk as ls

@ls.trace_agent
def solve(task):
    ls.emit_reward(len(task))
    return task.upper()

print(solve("ab"))
ls.emit_reward(1)
"""


def run(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LIGHTNING_HOME")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_program_without_a_collector_runs_unharmed_and_leaves_readable_segments(tmp_path: Path) -> None:
    ran = run(PROGRAM, tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "AB\n", "")
    records = read_spool(tmp_path / ".lightning" / "spool")
    assert bodies(records) == [
        "join",
        "rollout_start",
        "scope_start",
        "reward",
        "scope_end",
        "rollout_end",
        "leave",
        "reward",
    ]
    assert [sourced.seq for sourced in records] == list(range(1, 9))


def test_a_program_that_raises_ends_as_it_would_and_says_so_in_its_records(tmp_path: Path) -> None:
    ran = run(PROGRAM.replace("return task.upper()", "raise SystemExit(3)"), tmp_path)
    assert (ran.returncode, ran.stderr) == (3, "")
    records = read_spool(tmp_path / ".lightning" / "spool")
    assert of_kind(records, "rollout_end")[0].rollout_end.outcome == 3


def test_what_was_recorded_before_a_kill_is_readable(tmp_path: Path) -> None:
    code = PROGRAM.replace("return task.upper()", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run(code, tmp_path).returncode == -signal.SIGKILL
    records = read_spool(tmp_path / ".lightning" / "spool")
    assert bodies(records) == ["join", "rollout_start", "scope_start", "reward"]


def test_a_forked_child_joins_from_its_parent_and_each_ends_what_it_began(tmp_path: Path) -> None:
    code = """
import os
import lightning_sdk as ls

@ls.trace_agent
def part(): pass

@ls.trace_agent
def solve():
    part()
    child = os.fork()
    part()
    if child:
        os.waitpid(child, 0)

solve()
"""
    ran = run(code, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    records = read_spool(tmp_path / ".lightning" / "spool")
    producers = {
        sourced.producer: [r for r in records if r.producer == sourced.producer] for sourced in records
    }
    assert len(producers) == 2
    assert len({sourced.record.rollout_id for sourced in records}) == 1
    child = next(own for own in producers.values() if "rollout_start" not in bodies(own))
    parent = next(own for own in producers.values() if own is not child)
    assert bodies(child) == ["join", "scope_start", "scope_end", "leave"]
    assert child[0].record.join.parent_producer == parent[0].producer
    assert (
        child[0].record.join.parent_order == of_kind([r for r in parent if r.seq <= 5], "scope_end")[0].order
    )
    assert bodies(parent)[-3:] == ["scope_end", "rollout_end", "leave"]
    assert [own[-1].record.leave.count for own in (child, parent)] == [len(child), len(parent)]


def test_a_call_of_a_forked_worker_is_in_the_rollout_that_it_was_forked_in(tmp_path: Path) -> None:
    code = """
import os
import lightning_sdk as ls
from lightning_sdk.client.recorder import ProcessRecorder

@ls.trace_agent
def solve():
    child = os.fork()
    if not child:
        recorder = ProcessRecorder()
        call = recorder.start_call(integration="t", api="chat.completions", url="http://h", streamed=False)
        call.sent(b"{}")
        call.finish("ok")
        os._exit(0)
    os.waitpid(child, 0)

solve()
"""
    assert run(code, tmp_path).returncode == 0
    records = read_spool(tmp_path / ".lightning" / "spool")
    call = next(sourced for sourced in records if sourced.record.WhichOneof("body") == "call")
    child = [sourced for sourced in records if sourced.producer == call.producer]
    assert bodies(child) == ["join", "call", "leave"]
    assert call.record.scope_id == of_kind(records, "scope_start")[0].scope_id
