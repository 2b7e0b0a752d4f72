"""Whole programs: without a collector, interrupted, and forked."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lightning_sdk.records import Outcome
from support.client_records import bodies, of_kind, read_spool, run_program

PROGRAM = """
import lightning_sdk as ls

@ls.trace_agent
def solve(task):
    ls.emit_reward(len(task))
    return task.upper()

print(solve("ab"))
ls.emit_reward(1)
"""


def test_a_program_without_a_collector_runs_unharmed_and_leaves_readable_segments(tmp_path: Path) -> None:
    ran = run_program(PROGRAM, tmp_path)
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


@pytest.mark.parametrize("endpoint", ["", "grpc://127.0.0.1:9"])
@pytest.mark.parametrize("registered", ["before the import", "after it", "before anything was recorded"])
def test_what_a_hook_of_the_agent_records_at_exit_is_in_the_spool(
    registered: str, endpoint: str, tmp_path: Path
) -> None:
    code = """
import atexit
BEFORE
import lightning_sdk as ls
AFTER

@ls.trace_agent
def late():
    pass

def hook():
    ls.emit_reward(2, rollout_id="r")
    late()
    ls.emit_reward(3)

if WITH:
    with ls.rollout(rollout_id="r"):
        ls.emit_reward(1)
"""
    hook = "atexit.register(lambda: hook())"
    code = code.replace("BEFORE", "" if registered == "after it" else hook)
    code = code.replace("AFTER", hook if registered == "after it" else "")
    code = code.replace("WITH", str(registered != "before anything was recorded"))
    ran = run_program(code, tmp_path, LIGHTNING_ENDPOINT=endpoint)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert "Traceback" not in ran.stderr
    records = read_spool(tmp_path / ".lightning" / "spool")
    values = [record.reward.components[0].value for record in of_kind(records, "reward")]
    assert sorted(values) == ([2, 3] if registered == "before anything was recorded" else [1, 2, 3])
    assert bodies(records).count("join") == bodies(records).count("leave")
    assert not of_kind(records, "counters")


def test_a_program_that_raises_ends_as_it_would_and_says_so_in_its_records(tmp_path: Path) -> None:
    ran = run_program(PROGRAM.replace("return task.upper()", "raise SystemExit(3)"), tmp_path)
    assert (ran.returncode, ran.stderr) == (3, "")
    records = read_spool(tmp_path / ".lightning" / "spool")
    assert of_kind(records, "rollout_end")[0].rollout_end.outcome == 3


def test_what_was_recorded_before_a_kill_is_readable(tmp_path: Path) -> None:
    code = PROGRAM.replace("return task.upper()", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run_program(code, tmp_path).returncode == -signal.SIGKILL
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
    ran = run_program(code, tmp_path)
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
    assert run_program(code, tmp_path).returncode == 0
    records = read_spool(tmp_path / ".lightning" / "spool")
    call = next(sourced for sourced in records if sourced.record.WhichOneof("body") == "call")
    child = [sourced for sourced in records if sourced.producer == call.producer]
    assert bodies(child) == ["join", "call", "leave"]
    assert call.record.scope_id == of_kind(records, "scope_start")[0].scope_id


def test_a_forked_child_does_not_end_what_its_parent_began(tmp_path: Path) -> None:
    code = """
import os
import lightning_sdk as ls
from lightning_sdk.client.recorder import ProcessRecorder

@ls.trace_tool
def steps():
    yield 1

@ls.trace_tool
async def wait():
    class Pause:
        def __await__(self): yield
    await Pause()

@ls.trace_agent
def think():
    yield 1

@ls.trace_agent
def solve():
    recorder = ProcessRecorder()
    call = recorder.start_call(integration="t", api="chat.completions", url="http://h", streamed=True)
    call.sent(b"{}")
    running, thinking, waiting = steps(), think(), wait()
    next(running), next(thinking), waiting.send(None)
    child = os.fork()
    if not child:
        call.finish("abandoned")
        running.close(), thinking.close(), waiting.close()
        os._exit(0)
    os.waitpid(child, 0)
    call.finish("ok")
    list(running), list(thinking), waiting.close()

solve()
"""
    ran = run_program(code, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    records = read_spool(tmp_path / ".lightning" / "spool")
    assert len({sourced.producer for sourced in records}) == 1
    assert [record.call.outcome for record in of_kind(records, "call")] == [Outcome.OUTCOME_OK]
    assert len(of_kind(records, "tool_call")) == 2
    assert len(of_kind(records, "scope_end")) == 2


def test_a_generator_that_a_forked_child_begins_is_ended_there(tmp_path: Path) -> None:
    code = """
import os
import lightning_sdk as ls

@ls.trace_agent
def think():
    yield 1

with ls.rollout():
    thinking = think()
    child = os.fork()
    list(thinking)
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
"""
    assert run_program(code, tmp_path).returncode == 0
    records = read_spool(tmp_path / ".lightning" / "spool")
    ended = [item.producer for item in records if item.record.WhichOneof("body") == "scope_end"]
    assert len(ended) == len(set(ended)) == 2


def test_a_fork_leaves_no_lock_and_no_installation_of_another_thread_behind(tmp_path: Path) -> None:
    """Another thread is in the middle of everything that has a lock: the child does it all by itself."""
    site = tmp_path / "site"
    info = site / "slow_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "slow_library.py").write_text("patched = 0\n")
    (site / "slow_plugins.py").write_text(
        """
import threading
entered, go_on = threading.Event(), threading.Event()

class Slow:
    name, target, distribution, versions = "slow", "slow_library", "slow", ">=1"

    def install(self, recorder):
        import slow_library
        if not entered.is_set():
            entered.set()
            go_on.wait()
        slow_library.patched += 1
        return lambda: None
"""
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lightning_sdk.integrations]\nslow = slow_plugins:Slow\n")
    code = """
import os, threading
import slow_library, slow_plugins
import lightning_sdk as ls
from lightning_integrations.openai import _patches
from lightning_sdk import testing
from lightning_sdk.client import faults, integrations, journal, runtime

installing = threading.Thread(target=ls.init, daemon=True)
installing.start()
slow_plugins.entered.wait()

held = threading.Event()
def hold():
    with integrations._lock, testing._lock, runtime._lock, journal._lock, _patches._installation._lock:
        held.set()
        slow_plugins.go_on.wait()
holding = threading.Thread(target=hold)
holding.start()
held.wait()

child = os.fork()
if child:
    slow_plugins.go_on.set()
    holding.join(), installing.join()
    assert slow_library.patched == 1
    assert os.waitpid(child, 0)[1] == 0
else:
    with ls.rollout():
        assert slow_library.patched == 1
    with testing.capture():
        pass
    undo = _patches.install(None)
    undo()
    assert faults.counters() == {}
    os._exit(0)
"""
    ran = run_program(code, tmp_path, PYTHONPATH=f"{site}")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_fork_in_the_middle_of_the_first_traced_call_of_another_thread_leaves_the_child_able_to_trace(
    tmp_path: Path,
) -> None:
    """What is imported for the first call is never half there in a child."""
    code = """
import faulthandler, os, threading
import lightning_sdk as ls

@ls.trace_agent
def solve():
    pass

thread = threading.Thread(target=solve)
thread.start()
pids = []
for _ in range(10):
    pid = os.fork()
    if not pid:
        faulthandler.dump_traceback_later(50, exit=True)
        solve()
        os._exit(0)
    pids.append(pid)
thread.join()
assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 10
"""
    ran = run_program(code, tmp_path, PYTHONWARNINGS="ignore")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert bodies(read_spool(tmp_path / ".lightning" / "spool")).count("rollout_end") == 11
