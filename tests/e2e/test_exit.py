"""What a program recorded has arrived when it is over, however it ends, without a word of it about that.

1. At a normal end (return, sys.exit, an exception nobody catches) all is at the collector before the process
   is gone; so is what threads, an event loop and child processes recorded, as far as they are over.
2. After a sudden end nothing was lost on disk: the next process with the same spool sends it.
3. Whoever ends is held up for a moment only where no collector answers.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.client.segments import list_segments
from lightning_sdk.collector.reader import RemoteReader

# Python 3.12.0 and 3.12.1 start no thread any more once the main thread is over (CPython issue 113964).
pytestmark = pytest.mark.skipif(
    (3, 12, 0) <= sys.version_info < (3, 12, 2),
    reason="this Python cannot connect once its main thread is over",
)

AGENT = """
import atexit, os, sys
import lightning_sdk as ls

@ls.trace_agent
def solve(task):
    with_note(task)

def with_note(task):
    ls.annotate(task=task)

def rollout(task):
    with ls.rollout(task_id=task):
        solve(task)
"""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[str]:
    """The endpoint of `lsdk collect`."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lightning_sdk",
            "collect",
            "--home",
            str(tmp_path / "collector"),
            "--port",
            "0",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = re.search(r"grpc://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        process.stdout.close()


def run_agent(
    tmp_path: Path, endpoint: str, program: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """An agent in a process of its own, in the state directory that they all share."""
    script = tmp_path / "agent.py"
    script.write_text(AGENT + textwrap.dedent(program))
    variables = {"LIGHTNING_ENDPOINT": endpoint, "LIGHTNING_HOME": str(tmp_path / "agents"), **variables}
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def arrived(endpoint: str) -> list[str]:
    """The tasks whose rollouts are at the collector, all of them."""
    reader = RemoteReader(endpoint)
    summaries = list(reader.list_rollouts(RolloutQuery()))
    reader.close()
    assert all(summary.complete for summary in summaries)
    return sorted(summary.task_id for summary in summaries)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('the agent failed')", 1),
        ("import time; time.sleep(1); rollout('c')", 0),
    ],
    ids=["return", "sys.exit", "exception", "connected"],
)
def test_what_was_recorded_is_there_when_the_process_is_gone(
    tmp_path: Path, collector: str, ending: str, status: int
) -> None:
    done = run_agent(tmp_path, collector, f"rollout('a')\nrollout('b')\n{ending}")
    assert done.returncode == status, done.stderr
    assert arrived(collector) == ["a", "b", *(["c"] if "'c'" in ending else [])]
    assert "lightning" not in done.stderr
    assert list_segments(tmp_path / "agents" / "spool") == []


def test_what_an_exit_hook_records_arrives_too(tmp_path: Path, collector: str) -> None:
    program = "atexit.register(rollout, 'last')\nrollout('a')\natexit.register(rollout, 'late')"
    done = run_agent(tmp_path, collector, program)
    assert done.returncode == 0, done.stderr
    assert arrived(collector) == ["a", "last", "late"]


def test_what_threads_record_after_the_main_thread_is_over_arrives(tmp_path: Path, collector: str) -> None:
    program = """
        import threading, time
        from concurrent.futures import ThreadPoolExecutor

        def later(task):
            threading.main_thread().join()
            rollout(task)

        threading.Thread(target=later, args=("thread",)).start()
        ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.2), rollout("pool")))
        rollout("main")
    """
    done = run_agent(tmp_path, collector, program)
    assert done.returncode == 0, done.stderr
    assert arrived(collector) == ["main", "pool", "thread"]


def test_what_an_event_loop_recorded_arrives(tmp_path: Path, collector: str) -> None:
    program = """
        import asyncio

        @ls.trace_agent
        async def think(task):
            await asyncio.sleep(0)
            ls.annotate(task=task)

        async def one(task):
            with ls.rollout(task_id=task):
                await think(task)

        async def main():
            await asyncio.gather(*(one(str(number)) for number in range(3)))

        asyncio.run(main())
    """
    done = run_agent(tmp_path, collector, program)
    assert done.returncode == 0, done.stderr
    assert arrived(collector) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("method", "grpc"), [("fork", "before"), ("fork", "after"), ("spawn", "after"), ("forkserver", "after")]
)
def test_what_children_recorded_arrives_before_the_parent_is_gone(
    tmp_path: Path, collector: str, method: str, grpc: str
) -> None:
    program = f"""
        import multiprocessing

        if __name__ == "__main__":
            if {grpc == "before"}:
                import grpc
            context = multiprocessing.get_context({method!r})
            if {grpc == "before"}:
                rollout("parent")
            children = [context.Process(target=rollout, args=(f"child {{n}}",)) for n in range(3)]
            for child in children:
                child.start()
            for child in children:
                child.join()
            if {grpc == "after"}:
                rollout("parent")
    """
    done = run_agent(tmp_path, collector, program)
    assert done.returncode == 0, done.stderr
    assert arrived(collector) == ["child 0", "child 1", "child 2", "parent"], done.stderr


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_after_a_sudden_end_the_next_process_sends_what_was_left(
    tmp_path: Path, collector: str, ending: str
) -> None:
    run_agent(tmp_path, collector, f"rollout('a')\nrollout('b')\n{ending}")
    program = """
        import time
        from pathlib import Path

        rollout("next")
        while len(list(Path(os.environ["LIGHTNING_HOME"]).glob("spool/*.seg"))) > 1:
            time.sleep(0.05)
    """
    done = run_agent(tmp_path, collector, program)
    assert done.returncode == 0, done.stderr
    assert arrived(collector) == ["a", "b", "next"]
    assert list_segments(tmp_path / "agents" / "spool") == []


def test_without_a_collector_a_process_ends_all_the_same_and_says_once_where_its_records_are(
    tmp_path: Path,
) -> None:
    done = run_agent(tmp_path, "grpc://127.0.0.1:9", "rollout('a')\nprint('done')")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.count("records stay in the spool") == 1
    assert "Traceback" not in done.stderr
    assert len(list_segments(tmp_path / "agents" / "spool")) == 1
