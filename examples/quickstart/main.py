"""From an unmodified agent to a dataset: collector, policy endpoint, 32 rollouts, export. See README.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

import agent
import lightning_sdk as ls
from lightning_sdk.home import Home
from model import cached_model
from services import free_port, lsdk
from tasks import TASKS, Task

console = Console()

# All that is added to the agent: its tool in the tree, and the agent itself as a rollout.
agent.calculate = ls.trace_tool(agent.calculate)
solve = ls.trace_agent(agent.solve)


class Attempt(NamedTuple):
    """One rollout that is over."""

    task: Task
    rollout_id: str
    reward: float


def attempt(task: Task) -> Attempt:
    """One rollout: the agent as it is, under `trace_agent`; then its reward."""
    with ls.rollout(task_id=task.task_id, metadata={"question": task.question}) as rollout:
        answer = solve(task.question)
        reward = float(agent.final_number(answer) == task.answer)
        ls.emit_reward(reward)
    return Attempt(task, rollout.rollout_id, reward)


def collect_rollouts(rollouts: int, workers: int) -> list[Attempt]:
    """Run every task `rollouts` times, `workers` at once."""
    attempts = []
    with _progress() as progress, ThreadPoolExecutor(workers) as pool:
        bar = progress.add_task("rollouts", total=rollouts * len(TASKS))
        for done in as_completed([pool.submit(attempt, task) for _ in range(rollouts) for task in TASKS]):
            attempts.append(done.result())
            progress.advance(bar)
    return attempts


def run_agent(model: Path, run_id: str, rollouts: int, workers: int) -> list[Attempt]:
    """Serve `model`, run the agent against it, and return when the collector has every record."""
    home = Home.locate()
    home.ensure()
    logs = home.path
    collect_port, serve_port = free_port(), free_port()
    collector, endpoint = f"grpc://127.0.0.1:{collect_port}", f"http://127.0.0.1:{serve_port}/v1"
    serve = (str(model), "--name", agent.MODEL, "--endpoint", collector)
    with (
        lsdk("collect", port=collect_port, log=logs / "collect.log"),
        lsdk("serve", *serve, port=serve_port, log=logs / "serve.log"),
    ):
        # What the agent's own code reads: it is pointed at the endpoint as at any OpenAI-style server.
        os.environ.update(OPENAI_BASE_URL=endpoint, OPENAI_API_KEY="unused")
        ls.init(endpoint=collector, policy_endpoint=endpoint, project="quickstart", run_id=run_id)
        attempts = collect_rollouts(rollouts, workers)
        if not ls.flush(timeout=30):
            sys.exit(f"the collector did not take all records in 30 s; see {logs / 'collect.log'}")
        ls.shutdown()
    return attempts


def show_rewards(attempts: list[Attempt]) -> None:
    """A table of the rewards by task."""
    table = Table("task", "rewards", "mean", title="Rewards by task")
    for task in TASKS:
        values = [each.reward for each in attempts if each.task == task]
        table.add_row(
            task.task_id, " ".join(f"{value:g}" for value in values), f"{sum(values) / len(values):.2f}"
        )
    console.print(table)


def run_lsdk(*arguments: str) -> None:
    """Run an `lsdk` command and show it with what it prints."""
    console.print(f"\n[bold]$ lsdk {' '.join(arguments)}[/bold]", soft_wrap=True)
    subprocess.run([sys.executable, "-m", "lightning_sdk", *arguments], check=True)


def prepare_model() -> Path:
    """The model's directory, with a spinner while it is fetched and converted."""
    with _progress(counted=False) as progress:
        bar = progress.add_task("model", total=None)
        folder = cached_model(lambda step: progress.update(bar, description=f"model: {step}"))
        progress.update(bar, total=1, completed=1)
    return folder


def _progress(*, counted: bool = True) -> Progress:
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    if counted:
        columns.insert(3, MofNCompleteColumn())
    return Progress(*columns, console=Console(stderr=True))


def main() -> None:
    """Parse the command line and run it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=4, help="rollouts a task (default: 4)")
    parser.add_argument("--workers", type=int, default=16, help="rollouts at once (default: 16)")
    parser.add_argument("--out", type=Path, default=Path("out/transitions.jsonl"))
    arguments = parser.parse_args()

    started = time.monotonic()
    run_id = time.strftime("quickstart-%Y%m%d-%H%M%S")
    model = prepare_model()
    attempts = run_agent(model, run_id, arguments.rollouts, arguments.workers)
    run_lsdk("show", max(attempts, key=lambda each: each.reward).rollout_id)
    console.print()
    show_rewards(attempts)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    run_lsdk("export", "--backend", "jsonl", "--run", run_id, "--out", str(arguments.out))
    command = Path(sys.executable).with_name("lsdk")
    console.print(
        f"\nDone in {time.monotonic() - started:.0f} s. Each decision of the agent is a line of\n"
        f"{arguments.out}, with the token ids and log probabilities of the engine that sampled it. Next:\n"
        f"  {command} rollouts     all of them, then: show ID\n"
        f"  {command} stats        what was recorded, and what is usable\n"
        "  README.md, to add @ls.trace_agent and ls.emit_reward(...) to an agent of your own",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
