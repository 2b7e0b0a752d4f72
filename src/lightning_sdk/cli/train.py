"""`lsdk train`: tasks, rollouts, a trainer, new weights, again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightning_sdk.cli import wording
from lightning_sdk.cli.console import print_json
from lightning_sdk.cli.example import example
from lightning_sdk.cli.reading import home_option, json_option
from lightning_sdk.errors import ConfigError
from lightning_sdk.home import Home

if TYPE_CHECKING:
    from lightning_sdk.training.run import TrainingResult

_INTERRUPTED = 130
_FAILED = 1

# Why a run ended, for people.
_REASONS = {
    "rounds": "all rounds are done",
    "target": "the target was reached",
    "patience": "no better validation came any more",
    "nothing_to_train_on": "nothing could be trained on",
    "interrupted": "interrupted, and saved",
}


@click.command(
    epilog=example(
        "lsdk train my_agent:solve --tasks train.jsonl --validation held_out.jsonl \\",
        "    --model ./SmolLM2-135M-Instruct --backend torch_rl \\",
        "    -o backend.learning_rate=1e-5 -o learning.rounds=40 -o validation.target=0.9",
        "",
        "The same from a file, train.toml:  lsdk train --config train.toml",
        "  [run]",
        '  agent = "my_agent:solve"',
        '  tasks = "train.jsonl"',
        "  [policies]",
        '  policy = "./SmolLM2-135M-Instruct"',
        "  [learning]",
        "  rounds = 40",
        "  tasks_per_round = 16",
        "  rollouts_per_task = 8",
        "  [backend]",
        '  name = "torch_rl"',
        "  learning_rate = 1e-5",
        "  [validation]",
        '  tasks = "held_out.jsonl"',
        "  every = 5",
        "  target = 0.9",
        "",
        "lsdk train --resume RUN_ID",
    ),
)
@click.argument("agent", required=False, metavar="[MODULE:FUNCTION]")
@click.option("--tasks", metavar="FILE", help="Training tasks, as for `lsdk run`.")
@click.option("--validation", metavar="FILE", help="Held-out tasks.")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="The model to train. Several: a table [policies] in the file.",
)
@click.option(
    "--backend", metavar="NAME", help="Who trains; `lsdk backends` lists them.  [default: torch_rl]"
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings as TOML; docs/training.md has all.",
)
@click.option(
    "-o",
    "--option",
    "overrides",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="One setting, stronger than the file's. Repeatable.",
)
@click.option(
    "--async",
    "asynchronous",
    is_flag=True,
    help="Sample while training: learning.max_age is 1 where it is not set.",
)
@click.option("--run-id", metavar="ID", help="Name of the run.  [default: a fresh one]")
@click.option("--resume", metavar="RUN_ID", help="Go on with a run; it has its settings.")
@click.option(
    "--endpoint", metavar="URL", help="Collector that runs, as grpc://host:port.  [default: one is started]"
)
@click.option(
    "--policy-endpoint",
    metavar="URL",
    help="Policy endpoint that runs, as http://host:port/v1.  [default: one is started]",
)
@home_option
@json_option
def command(
    home: Home,
    as_json: bool,
    agent: str | None,
    tasks: str | None,
    validation: str | None,
    model: Path | None,
    backend: str | None,
    config: Path | None,
    overrides: Sequence[str],
    asynchronous: bool,
    run_id: str | None,
    resume: str | None,
    endpoint: str | None,
    policy_endpoint: str | None,
) -> int:
    """Train the model of an agent on tasks.

    In each round the agent runs several times on each of some tasks, its model calls answered by the policy endpoint.
    What it did becomes episodes, the backend learns from them, and the endpoint gets the new weights. Collector and
    endpoint are started for the run, and end with it. Everything of the run is in runs/RUN_ID of the state directory.

    Ctrl-C saves a checkpoint. Exit code 1: nothing could be trained on, not even once.
    """
    # Here, since none of it is needed for --help.
    from lightning_sdk.rollouts.agents import import_from_here
    from lightning_sdk.training import gather
    from lightning_sdk.training.run import run_training

    # Settings may name functions (AIR rules, a credit), which are found where the agent is.
    import_from_here()
    if resume is not None and run_id is not None:
        raise ConfigError("--resume names the run already: leave out --run-id")
    tables: dict[str, dict[str, Any]] = {
        "run": {"agent": agent, "tasks": tasks},
        "validation": {"tasks": validation},
        "backend": {"name": backend},
        "services": {"endpoint": endpoint, "policy_endpoint": policy_endpoint},
    }
    settings = gather(
        config=config, tables=[tables], model=model, resume=resume, home=home, overrides=overrides
    )
    if asynchronous and settings.learning.max_age == 0:
        learning = settings.learning.model_copy(update={"max_age": 1})
        settings = settings.model_copy(update={"learning": learning})
    result = run_training(settings, run_id=resume or run_id, resume=resume is not None, home=home.path)
    if as_json:
        print_json(_to_json(result))
    else:
        _print(result)
    if result.reason == "interrupted":
        return _INTERRUPTED
    return _FAILED if result.reason == "nothing_to_train_on" and not any(result.versions.values()) else 0


def _to_json(result: TrainingResult) -> dict[str, Any]:
    return {
        "run_id": result.run_id,
        "directory": str(result.directory),
        "reason": result.reason,
        "rounds_done": result.rounds_done,
        "best": result.best,
        "best_round": result.best_round,
        "versions": dict(result.versions),
        "models": {name: str(path) for name, path in result.models.items()},
        "curves": [str(path) for path in result.curves],
        "idle_reasons": dict(result.idle_reasons),
    }


def _print(result: TrainingResult) -> None:
    lines = [f"run {result.run_id}: {_REASONS[result.reason]} after {result.rounds_done} rounds"]
    if result.idle_reasons:
        lines.append(f"not trained on: {wording.tally(result.idle_reasons)}")
    if result.best is not None:
        lines.append(f"best held-out reward: {result.best:.3f}, after {result.best_round} rounds")
    lines += [f"model of {name}: {path}" for name, path in result.models.items()]
    lines += [f"curve: {path}" for path in result.curves]
    if result.reason == "interrupted":
        lines.append(f"go on with: lsdk train --resume {result.run_id}")
    for line in lines:
        click.echo(wording.one_line(line))
