"""`lsdk run`: an agent over tasks, to collect data."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
from click.core import ParameterSource

from lightning_sdk.cli import wording
from lightning_sdk.cli.console import notice
from lightning_sdk.cli.example import example
from lightning_sdk.cli.reading import Source, json_option, source_options
from lightning_sdk.errors import RunError
from lightning_sdk.ids import new_id
from lightning_sdk.rollouts.journal import read_journal, run_directory
from lightning_sdk.rollouts.mixing import TaskSet, merge, take
from lightning_sdk.rollouts.plan import RunOptions
from lightning_sdk.rollouts.restore import restore
from lightning_sdk.rollouts.retries import RetryRule
from lightning_sdk.rollouts.runner import Runner
from lightning_sdk.rollouts.tasks import load_tasks
from lightning_sdk.rollouts.workers.kinds import DEFAULT_KIND, KINDS, make_workers

_INTERRUPTED: Final = 128 + signal.SIGINT
_GIVEN_UP: Final = 1

# What a resumed run takes from its journal unless it is given anew. No secret is among it.
_KEPT: Final = (
    *("agent", "kind", "workers", "timeout_s", "split", "project", "seed", "retry", "max_attempts"),
    *("max_failures", "agents", "policy_endpoint", "ray_address"),
)


@click.command(
    epilog=example(
        "lsdk run my_agent:solve --tasks train.jsonl -n 4 --workers 8",
        "lsdk run my_agent:solve --tasks math.jsonl:2 --tasks code.jsonl --timeout 60 --retry timeout",
        "lsdk run my_agent:solve --tasks train.jsonl --kind remote --endpoint grpc://host:4319",
        "lsdk run --resume run_3f2a",
    )
)
@click.argument("agent", required=False, metavar="[MODULE:FUNCTION]")
@click.option(
    "--tasks",
    "task_files",
    multiple=True,
    metavar="FILE[:WEIGHT]",
    help="JSONL or Parquet file, or Hugging Face data set; may be repeated. WEIGHT 2 takes each task twice.",
)
@click.option("-n", "n", type=click.IntRange(min=1), default=1, show_default=True, help="Rollouts a task.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Rollouts that run at once; --kind remote: as many as its workers have slots.",
)
@click.option(
    "--kind", type=click.Choice(KINDS), default=DEFAULT_KIND, show_default=True, help="Where they run."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="A rollout is ended, and truncated, after so long.",
)
@click.option("--split", metavar="NAME", help="The part of the data set that it is, such as train.")
@click.option("--project", metavar="NAME", help="Keeps apart what belongs apart.  [default: default]")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the order, the weights and the rollouts."
)
@click.option("--shuffle", is_flag=True, help="Take the tasks in an order that the seed gives.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Take the first N tasks only.")
@click.option(
    "--retry",
    multiple=True,
    default=("lost",),
    show_default=True,
    metavar="WHAT",
    help="Try again after lost (the worker died), timeout, failed, or an exception's name; may be repeated.",
)
@click.option(
    "--max-attempts", type=click.IntRange(min=1), default=2, show_default=True, help="Attempts a rollout."
)
@click.option(
    "--max-failures",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    metavar="SHARE",
    help="Give up when a larger share has ended badly, once 10 rollouts have ended.",
)
@click.option(
    "--agents", metavar="PATTERN", help="Agents whose calls go to the policy endpoint: writer|rewriter."
)
@click.option(
    "--policy-endpoint",
    envvar="LIGHTNING_POLICY_ENDPOINT",
    show_envvar=True,
    metavar="URL",
    help="Base URL of the endpoint that serves the policy.",
)
@click.option(
    "--policy-token", envvar="LIGHTNING_POLICY_TOKEN", show_envvar=True, metavar="TOKEN", help="Its token."
)
@click.option("--ray-address", metavar="ADDRESS", help="Cluster for --kind ray.  [default: one of its own]")
@click.option("--id-column", metavar="NAME", help="Column with the task's id.  [default: task_id or id]")
@click.option(
    "--agent-column",
    default="agent",
    show_default=True,
    metavar="NAME",
    help="Column with a task's own MODULE:FUNCTION; '' for none.",
)
@click.option("--weight-column", metavar="NAME", help="Column with a task's weight.")
@click.option("--dataset-config", metavar="NAME", help="Configuration of a Hugging Face data set.")
@click.option(
    "--dataset-split", default="train", show_default=True, metavar="NAME", help="Its split to take."
)
@click.option("--run-id", metavar="ID", help="The run's id.  [default: a fresh one]")
@click.option(
    "--resume", metavar="RUN_ID", help="Go on with a run that was stopped, with its tasks and options."
)
@click.option("--retry-failed", is_flag=True, help="With --resume: also run again what ended badly.")
@source_options
@json_option
@click.pass_context
def command(context: click.Context, /, source: Source, **given: Any) -> int:
    """Run an agent over tasks, and record every rollout.

    MODULE:FUNCTION is called once for each task, or -n times. It is imported from the working directory and gets
    one argument, the task's row. It need not be traced.

    Ctrl-C stops the run so that it can be resumed. Exit code 1 says that the run was given up, or that all of it
    ended badly.
    """
    settings = _settled(context, source, given)
    _tell_environment(source)
    run_id = settings["run_id"]
    directory = run_directory(source.home, run_id)
    workers = make_workers(
        settings["kind"],
        settings["workers"],
        output=directory / "output",
        ray_address=settings["ray_address"],
        endpoint=source.endpoint,
        token=source.token,
    )
    plan = None if settings["resume"] else _plan(settings)
    kept = {name: settings[name] for name in _KEPT}
    with (
        _Interrupts() as interrupts,
        Runner(
            workers,
            _options(settings),
            run_id=run_id,
            resume=bool(settings["resume"]),
            home=source.home.path,
            endpoint=source.endpoint,
            token=source.token,
            kept=kept if plan is None else {**kept, "groups": len(plan)},
        ) as runner,
    ):
        # All that is to be run is in the journal before anything stops us, or it could not be resumed.
        if plan is None:
            runner.restore_all(reopen_bad=settings["retry_failed"])
        else:
            for task, round in plan:
                runner.submit([task], settings["n"], round=round, split=settings["split"])
        return _follow(runner, source, interrupts, as_json=settings["as_json"])


def _follow(runner: Runner, source: Source, interrupts: _Interrupts, *, as_json: bool) -> int:
    """Watch a run to its end; returns the exit code."""
    # Here, because --help needs none of it.
    from lightning_sdk.cli.run_progress import RunView

    view = RunView(runner, source)
    code = 0
    try:
        interrupts.allow()
        view.watch()
    except KeyboardInterrupt:
        notice(f"stopping run {runner.run_id}")
        runner.stop("interrupted")
        code = _INTERRUPTED
    except RunError as error:
        runner.stop("given up")
        notice(f"lsdk: {error}")
        code = _GIVEN_UP
    runner.settle()
    summary = view.finish(as_json=as_json)
    if summary.open:
        again = " --retry-failed" if code == _GIVEN_UP else ""
        left = wording.count(summary.open, "rollout")
        notice(f"{left} left: lsdk run --resume {runner.run_id}{again}")
    elif code == 0 and summary.bad == summary.rollouts:
        code = _GIVEN_UP
    return code


class _Interrupts:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt, but not before `allow`: then those that came meanwhile do."""

    def __init__(self) -> None:
        self._allowed = False
        self._came = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def allow(self) -> None:
        """Raise KeyboardInterrupt from now on.

        Raises:
            KeyboardInterrupt: an interrupt came before.
        """
        self._allowed = True
        if self._came:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        if self._allowed:
            raise KeyboardInterrupt


def _settled(context: click.Context, source: Source, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options, of a resumed run those of its journal where they were not given now."""
    settings = dict(given)
    settings["retry"] = list(given["retry"])
    if not given["resume"]:
        if given["retry_failed"]:
            raise click.UsageError("--retry-failed needs --resume: which run's failures")
        if not given["task_files"]:
            raise click.UsageError("no tasks are given: --tasks FILE, or --resume RUN_ID")
        settings["run_id"] = given["run_id"] or new_id("run")
        settings["project"] = given["project"] or os.environ.get("LIGHTNING_PROJECT") or "default"
        return settings
    if given["task_files"] or given["run_id"]:
        raise click.UsageError("--resume goes on with the run's own tasks: leave out --tasks and --run-id")
    run_id = _whole_run_id(source, given["resume"])
    restored = restore(read_journal(run_directory(source.home, run_id)))
    kept = restored.options
    if len(restored.groups) < kept.get("groups", 0):
        raise RunError(
            f"{run_id} was killed before all of its tasks were noted: run it anew, under another id"
        )
    for name in _KEPT:
        parameter = context.get_parameter_source(name)
        if name in kept and parameter in (ParameterSource.DEFAULT, None):
            settings[name] = kept[name]
    return {**settings, "run_id": run_id, "resume": run_id}


def _whole_run_id(source: Source, beginning: str) -> str:
    """The run whose id begins so."""
    runs = source.home.path / "runs"
    known = sorted(each.name for each in runs.iterdir()) if runs.is_dir() else []
    found = [name for name in known if name == beginning] or [
        name for name in known if name.startswith((beginning, f"run_{beginning}"))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise click.UsageError(f"{len(found)} runs begin with {beginning!r}: give more of the id")
    raise click.UsageError(f"there is no run {beginning!r} in {runs}")


def _plan(settings: Mapping[str, Any]) -> Sequence[Any]:
    sets = merge([_task_set(each, settings) for each in settings["task_files"]])
    plan = take(sets, seed=settings["seed"], shuffled=settings["shuffle"], limit=settings["limit"])
    if settings["agent"] is None and any(task.agent is None for task, _ in plan):
        raise click.UsageError("no agent is given, and not every task names one: lsdk run MODULE:FUNCTION")
    return plan


def _task_set(text: str, settings: Mapping[str, Any]) -> TaskSet:
    name, weight = text, 1.0
    before, colon, after = text.rpartition(":")
    if colon and before:
        try:
            weight, name = float(after), before
        except ValueError:
            pass  # a colon in the file's name
    if not 0 < weight < 1e6:
        raise click.UsageError(f"--tasks {text}: a weight is a number above 0")
    tasks = load_tasks(
        name,
        id_column=settings["id_column"],
        agent_column=settings["agent_column"] or None,
        weight_column=settings["weight_column"],
        config=settings["dataset_config"],
        split=settings["dataset_split"],
    )
    return TaskSet(Path(name).stem, tasks, weight)


def _options(settings: Mapping[str, Any]) -> RunOptions:
    return RunOptions(
        agent=settings["agent"],
        project=settings["project"],
        seed=settings["seed"],
        timeout_s=settings["timeout_s"],
        routing=_routing(settings),
        retry=RetryRule(max_attempts=settings["max_attempts"], on=settings["retry"]),
        max_failures=settings["max_failures"],
    )


def _routing(settings: Mapping[str, Any]) -> dict[str, Any]:
    agents: Any = settings["agents"]
    if agents and not settings["policy_endpoint"]:
        raise click.UsageError("--agents needs --policy-endpoint: where their calls go")
    if agents and agents.lstrip().startswith("{"):
        try:
            agents = json.loads(agents)
        except ValueError as error:
            raise click.UsageError(f"--agents is no JSON object: {error}") from None
    named = {
        "policy_endpoint": settings["policy_endpoint"],
        "policy_token": settings["policy_token"],
        "agents": agents,
    }
    return {name: value for name, value in named.items() if value}


def _tell_environment(source: Source) -> None:
    """Where records go, for this process and all that it starts."""
    os.environ["LIGHTNING_HOME"] = str(source.home.path)
    os.environ["LIGHTNING_SPOOL_DIR"] = str(source.home.spool)
    for name, value in (("LIGHTNING_ENDPOINT", source.endpoint), ("LIGHTNING_TOKEN", source.token)):
        if value:
            os.environ[name] = value
