"""Agents as users write them, well-behaved and not. Each gets a task; most of them say what they reward."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning_sdk as ls


def plain(task: Any) -> None:
    ls.emit_reward(1.0)


@ls.trace_agent
def traced(task: Any) -> None:
    ls.emit_reward(1.0)


async def coroutine(task: Any) -> None:
    await asyncio.sleep(0)
    ls.emit_reward(1.0)


def generator(task: Any) -> Iterator[int]:
    yield 1
    ls.emit_reward(1.0)


def own_loop(task: Any) -> None:
    asyncio.run(coroutine(task))


def _rewarded_child() -> None:
    ls.emit_reward(1.0)


def forking(task: Any) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    process = multiprocessing.get_context("fork").Process(target=_rewarded_child)
    process.start()
    process.join()
    assert process.exitcode == 0


def fork_that_comes_back(task: Any) -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        ls.emit_reward(1.0)


def printing(task: Any) -> None:
    print('{"result": {}}\n' * 1000)  # noqa: T201
    sys.stderr.write("to standard error\n")
    os.write(1, b'{"started": true}\n')
    ls.emit_reward(1.0)


def closing_output(task: Any) -> None:
    sys.stdout.close()
    os.close(2)
    ls.emit_reward(1.0)


def leaking_a_thread(task: Any) -> None:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    ls.emit_reward(1.0)


def leaking_a_process(task: Any) -> None:
    ls.emit_reward(1.0)
    if os.fork() == 0:
        time.sleep(1000)


def exiting_well(task: Any) -> None:
    ls.emit_reward(1.0)
    sys.exit(0)


def exiting(task: Any) -> None:
    sys.exit(3)


def exiting_at_once(task: Any) -> None:
    os._exit(7)


def crashing(task: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def failing(task: Any) -> None:
    raise ValueError("no such answer; the key was sk-abcdefghijklmnopqrstuvwxyz0123456789ABCD")


def hanging_in_c(task: Any) -> None:
    ls.emit_reward(0.25)
    ctypes.PyDLL(None).sleep(1000)  # never lets go of the interpreter


def telling_its_variables(task: Any) -> None:
    """Which of the variables that the task names it has."""
    ls.emit_reward({name: 1.0 for name in task["names"] if name in os.environ} or {"none": 0.0})


def waiting(task: Any) -> None:
    """Until a file is there."""
    ls.emit_reward(1.0)
    while not Path(task["until"]).exists():
        time.sleep(0.01)


def drawing(task: Any) -> None:
    ls.emit_reward(random.random())


def failing_first(task: Any) -> None:
    """Fails until it has been tried `task["tries"]` times, counted in a file."""
    with Path(task["file"]).open("a+") as file:
        file.write("x")
        file.seek(0)
        tried = len(file.read())
    if tried < task["tries"]:
        raise ConnectionError(f"try {tried}")
    ls.emit_reward(float(tried))


async def sleeping(task: Any) -> None:
    await asyncio.sleep(1000)


async def together(task: Any) -> None:
    """Ends when as many of it run at once as the task says."""
    _present.append(1)
    while len(_present) < task["present"]:
        await asyncio.sleep(0.001)


_present: list[int] = []


async def stubborn(task: Any) -> None:
    """Does not let itself be cancelled, until the list is not empty."""
    while not released:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.001)


released: list[int] = []
