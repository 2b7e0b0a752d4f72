"""Rollouts a second of an agent that calls a model ten times, by kind of worker, with everything recorded.

The model answers at once, inside the agent's process, so that nothing but the agent's own work (the openai client)
and ours is timed: with a real model, which takes a second a call, none of this is seen. Beside each kind stands the
same loop without lightning_sdk, on as many processes or threads. Starting the workers is not timed.
There is no figure of agentlightning's runner: its dependencies were not installed in the time that there was.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = 10
WORKERS = 2
ROLLOUTS = 200
WARM_UP = 20
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "a sentence. " * 60},
        }
    ],
    "usage": {"prompt_tokens": 200, "completion_tokens": 150, "total_tokens": 350},
}
MESSAGES: Any = [{"role": "user", "content": "a question. " * 60}]
_clients: dict[str, Any] = {}


def _client(kind: str) -> Any:
    """One client a process: openai's, with a transport that answers at once."""
    if kind not in _clients:
        import httpx2
        import openai

        body = json.dumps(ANSWER).encode()
        transport = httpx2.MockTransport(
            lambda request: httpx2.Response(200, content=body, headers={"content-type": "application/json"})
        )
        made: Any = (
            openai.OpenAI(
                api_key="unused", base_url="http://mock/v1", http_client=httpx2.Client(transport=transport)
            )
            if kind == "sync"
            else openai.AsyncOpenAI(
                api_key="unused",
                base_url="http://mock/v1",
                http_client=httpx2.AsyncClient(transport=transport),
            )
        )
        _clients[kind] = made
    return _clients[kind]


def agent(task: Any) -> None:
    """Ten calls, one after the other."""
    client = _client("sync")
    for _ in range(CALLS):
        client.chat.completions.create(model="m", messages=MESSAGES)


async def async_agent(task: Any) -> None:
    """Ten calls, one after the other."""
    client = _client("async")
    for _ in range(CALLS):
        await client.chat.completions.create(model="m", messages=MESSAGES)


def bare(kind: str) -> float:
    """Rollouts a second of the loop alone."""
    if kind == "processes":
        code = "import sys; sys.path.insert(0, 'benchmarks'); import rollouts; rollouts.bare_child()"
        children = [
            subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(WORKERS)
        ]
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        began = time.perf_counter()
        for child in children:
            child.communicate("go\n")
        return ROLLOUTS / (time.perf_counter() - began)
    return _timed(_in_threads if kind == "threads" else _in_loop)


def bare_child() -> None:
    """One process of `bare`: warms up, waits, runs its part."""
    for _ in range(WARM_UP):
        agent(None)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(ROLLOUTS // WORKERS):
        agent(None)


def _timed(run: Callable[[int], None]) -> float:
    run(WARM_UP)
    began = time.perf_counter()
    run(ROLLOUTS)
    return ROLLOUTS / (time.perf_counter() - began)


def _in_threads(rollouts: int) -> None:
    def work() -> None:
        for _ in range(rollouts // WORKERS):
            agent(None)

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _in_loop(rollouts: int) -> None:
    async def work() -> None:
        for _ in range(rollouts // WORKERS):
            await async_agent(None)

    async def everything() -> None:
        await asyncio.gather(*(work() for _ in range(WORKERS)))

    asyncio.run(everything())
    _clients.pop("async", None)


def recorded(kind: str) -> float:
    """Rollouts a second of a run with journal and records."""
    from lightning_sdk.rollouts.plan import RunOptions
    from lightning_sdk.rollouts.runner import Runner
    from lightning_sdk.rollouts.tasks import load_tasks
    from lightning_sdk.rollouts.workers.kinds import make_workers

    name = "rollouts:async_agent" if kind == "async" else "rollouts:agent"
    tasks = load_tasks([{"id": number} for number in range(WARM_UP + ROLLOUTS)])
    with Runner(make_workers(kind, WORKERS), RunOptions(agent=name)) as runner:
        runner.submit(tasks[:WARM_UP])
        runner.run()
        began = time.perf_counter()
        runner.submit(tasks[WARM_UP:])
        summary = runner.run()
        seconds = time.perf_counter() - began
    assert summary.states == {"succeeded": WARM_UP + ROLLOUTS}, summary
    return ROLLOUTS / seconds


def main() -> None:
    """Print a table."""
    os.chdir(Path(__file__).parents[1])
    sys.path.insert(0, "benchmarks")
    os.environ["PYTHONPATH"] = str(Path("benchmarks").absolute())
    print(f"{ROLLOUTS} rollouts of {CALLS} calls, {WORKERS} workers\n")
    print(f"{'kind':<12} {'rollouts/s':>12} {'without us':>12} {'ratio':>7}")
    for kind in ("processes", "threads", "async"):
        alone = bare(kind)
        with tempfile.TemporaryDirectory() as home:
            os.environ["LIGHTNING_HOME"] = home
            ours = recorded(kind)
        print(f"{kind:<12} {ours:>12.1f} {alone:>12.1f} {ours / alone:>7.2f}")


if __name__ == "__main__":
    main()
