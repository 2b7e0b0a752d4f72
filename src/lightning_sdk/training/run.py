"""A run from its settings to its result: everything is opened here, in order, and closed whatever happens."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lightning_sdk.client import runtime
from lightning_sdk.errors import ConfigError, LightningError, RunError
from lightning_sdk.home import Home, StrPath
from lightning_sdk.ids import new_id
from lightning_sdk.mdp.air.config import rules_from_config
from lightning_sdk.plugins import Trainer, TrainingRun
from lightning_sdk.rollouts.journal import JOURNAL
from lightning_sdk.rollouts.plan import RunOptions
from lightning_sdk.rollouts.retries import RetryRule
from lightning_sdk.rollouts.runner import Runner
from lightning_sdk.rollouts.tasks import load_tasks
from lightning_sdk.rollouts.workers.kinds import make_workers
from lightning_sdk.training import curve
from lightning_sdk.training.batches import Batches
from lightning_sdk.training.episodes import EpisodeSource
from lightning_sdk.training.interrupts import Interrupts
from lightning_sdk.training.loop import Loop, Parts
from lightning_sdk.training.progress import Progress, for_terminal
from lightning_sdk.training.settings import Settings
from lightning_sdk.training.sinks import Sinks, check_sinks
from lightning_sdk.training.stack import Stack, open_stack
from lightning_sdk.training.state import RunDirectory, RunState
from lightning_sdk.training.stopping import StopReason
from lightning_sdk.training.trainers import find_trainer, make_trainer

# For a rollout, where nobody says otherwise.
_USUAL_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What became of a run."""

    run_id: str
    directory: Path
    # Why it ended: its rounds were over, the target was reached, patience ran out, nothing could be trained on, or it
    # was interrupted.
    reason: StopReason
    rounds_done: int
    # The best mean reward on held-out tasks, and the rounds that were done then; None without validation.
    best: float | None
    best_round: int | None
    # Version of each policy.
    versions: Mapping[str, int]
    # The models as they are now, by policy, in Hugging Face's format.
    models: Mapping[str, Path]
    # Pictures of the rewards.
    curves: tuple[Path, ...]
    # Where nothing could be trained on: why not, with counts.
    idle_reasons: Mapping[str, int] = field(default_factory=dict)


def run_training(
    settings: Settings,
    *,
    run_id: str | None = None,
    resume: bool = False,
    home: StrPath | None = None,
    tasks: Iterable[Any] | None = None,
    held_out: Iterable[Any] | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train.

    Args:
        settings: all of them.
        run_id: default: a fresh one.
        resume: go on with the run of that id.
        home: the state directory; default: as for `lightning_sdk.init`.
        tasks: instead of those that the settings name.
        held_out: instead of the settings' validation tasks.
        progress: is told what happens; default: stderr, where that is a terminal.

    Raises:
        ConfigError: a setting cannot be used. Nothing was started.
        LightningError: the run cannot go on; the message says how to resume it.
    """
    located = Home.locate(home)
    run_id = run_id or new_id("run")
    told = progress or for_terminal()
    trainer_class = find_trainer(settings.backend.name)
    trainer = make_trainer(settings.backend.name, trainer_class, settings.backend.options)
    prepared = _prepare(settings, tasks, held_out, needs_models=not trainer.serves)
    opened = (
        RunDirectory.reopen(located, run_id) if resume else RunDirectory.create(located, run_id, settings)
    )
    interrupts = Interrupts(
        lambda: told.say("ending after this step; again to end at once, without a checkpoint")
    )
    with opened as directory, interrupts.installed(), ExitStack() as exits:
        exits.callback(told.close)
        return _run(_Opened(settings, located, directory, trainer, prepared, told, interrupts, exits), resume)


@dataclass(frozen=True)
class _Prepared:
    batches: Batches
    held_out: tuple[Any, ...]
    rules: tuple[Any, ...]


@dataclass(frozen=True)
class _Opened:
    settings: Settings
    home: Home
    directory: RunDirectory
    trainer: Trainer
    prepared: _Prepared
    progress: Progress
    interrupts: Interrupts
    exits: ExitStack


def _prepare(
    settings: Settings, tasks: Iterable[Any] | None, held_out: Iterable[Any] | None, *, needs_models: bool
) -> _Prepared:
    """All that can be wrong before anything is started."""
    if not settings.policies:
        raise ConfigError(
            "there is no policy to train: give --model DIRECTORY, or a table [policies] of name = directory"
        )
    for name, model in settings.policies.items():
        if needs_models and not (model / "config.json").is_file():
            raise ConfigError(
                f"policy {name!r}: {model} has no config.json: expected a Hugging Face model directory"
            )
    source = settings.run.tasks if tasks is None else tasks
    if source is None:
        raise ConfigError("there are no tasks: give --tasks FILE, or run.tasks in the file")
    loaded = load_tasks(source)
    if settings.run.agent is None and any(task.agent is None for task in loaded):
        raise ConfigError("there is no agent: give module:function, or run.agent in the file")
    held_out_source = settings.validation.tasks if held_out is None else held_out
    held_out_tasks = () if held_out_source is None else tuple(load_tasks(held_out_source))
    if not held_out_tasks and (
        settings.validation.target is not None or settings.validation.patience is not None
    ):
        raise ConfigError(
            "validation.target and validation.patience need held-out tasks: give --validation FILE, or leave them out"
        )
    learning = settings.learning
    batches = Batches(loaded, learning.tasks_per_round, seed=settings.run.seed, shuffle=learning.shuffle)
    check_sinks(settings.report.sinks)
    return _Prepared(batches, held_out_tasks, rules_from_config(settings.air))


def _run(opened: _Opened, resume: bool) -> TrainingResult:
    settings, directory, exits = opened.settings, opened.directory, opened.exits
    found = directory.latest() if resume else None
    state = found[0] if found else RunState(versions=dict.fromkeys(settings.policies, 0))
    directory.forget_after(state)
    sinks = Sinks(settings.report.sinks, directory.metrics, directory.run_id)
    exits.callback(sinks.close)
    opened.progress.doing("starting")
    with_policies = not opened.trainer.serves
    stack = exits.enter_context(
        open_stack(settings, opened.home, directory.path, with_policies=with_policies)
    )
    exits.enter_context(_client_settings(opened.home, stack))
    trainer = exits.enter_context(closing(opened.trainer))
    trainer.open(_training_run(settings, directory, stack))
    if trainer.serves:
        stack.policy_endpoint = trainer.endpoint or ""
    if found:
        trainer.restore(found[1])
    source = EpisodeSource(
        stack.endpoint,
        stack.token,
        arrival_timeout_s=settings.rollouts.arrival_timeout_s,
        policy_endpoint=stack.policy_endpoint,
        rules=opened.prepared.rules,
        wait=opened.interrupts.wait,
    )
    exits.callback(source.close)
    runner = exits.enter_context(_runner(opened, stack))
    parts = Parts(
        trainer=trainer,
        runner=runner,
        source=source,
        stack=stack,
        batches=opened.prepared.batches,
        held_out=opened.prepared.held_out,
        sinks=sinks,
        progress=opened.progress,
        interrupts=opened.interrupts,
    )
    return _drive(Loop(settings, directory, parts, state), directory, trainer)


def _drive(loop: Loop, directory: RunDirectory, trainer: Trainer) -> TrainingResult:
    """Run the loop, and leave pictures and models behind."""
    try:
        reason = loop.run()
    except BaseException as error:
        directory.tell(loop.state, "failed", error=str(error))
        curve.draw(directory.metrics, directory.run_id)
        if isinstance(error, LightningError):
            raise RunError(f"{error}; resume with: lsdk train --resume {directory.run_id}") from error
        raise
    curves = curve.draw(directory.metrics, f"{directory.run_id}: mean reward")
    models = directory.replace("models", trainer.export) if reason != "interrupted" else {}
    stopping = loop.state.stopping
    directory.tell(loop.state, reason)
    return TrainingResult(
        run_id=directory.run_id,
        directory=directory.path,
        reason=reason,
        rounds_done=loop.state.rounds_done,
        best=stopping.best,
        best_round=stopping.best_round,
        versions=dict(loop.state.versions),
        models=models,
        curves=tuple(curves),
        idle_reasons=dict(stopping.idle_reasons),
    )


def _training_run(settings: Settings, directory: RunDirectory, stack: Stack) -> TrainingRun:
    return TrainingRun(
        run_id=directory.run_id,
        directory=directory.path,
        policies=settings.policies,
        temperature=settings.learning.temperature,
        max_tokens=settings.learning.max_tokens,
        seed=settings.run.seed,
        publisher=stack.publisher,
        max_age=settings.learning.max_age,
    )


def _runner(opened: _Opened, stack: Stack) -> Runner:
    settings = opened.settings
    rollouts = settings.rollouts
    workers = make_workers(
        rollouts.kind,
        rollouts.workers,
        output=opened.directory.path / "agents",
        ray_address=rollouts.ray_address,
        endpoint=stack.endpoint,
        token=stack.token,
    )
    timeout_s = rollouts.timeout_s
    if timeout_s is None and workers.no_timeout is None:
        timeout_s = _USUAL_TIMEOUT_S
    options = RunOptions(
        agent=settings.run.agent,
        project=settings.run.project,
        seed=settings.run.seed,
        timeout_s=timeout_s or None,
        routing={
            "policy_endpoint": stack.policy_endpoint,
            "policy_token": stack.policy_token,
            "agents": settings.agents,
        },
        retry=RetryRule(max_attempts=rollouts.attempts),
        # A policy that has not learned yet may well make its agent fail; what cannot be trained on stops the run.
        max_failures=1.0,
    )
    resume = (opened.directory.path / JOURNAL).exists()
    return Runner(
        workers,
        options,
        run_id=opened.directory.run_id,
        resume=resume,
        home=opened.home.path,
        endpoint=stack.endpoint,
        token=stack.token,
    )


@contextmanager
def _client_settings(home: Home, stack: Stack) -> Iterator[None]:
    """The settings of the client in workers and in a trainer's own endpoint: they inherit our environment.

    Workers that run in this process initialise its client; what began here ends before the collector does.
    """
    wanted = {
        "LIGHTNING_HOME": str(home.path),
        "LIGHTNING_SPOOL_DIR": str(home.spool),
        "LIGHTNING_ENDPOINT": stack.endpoint,
        "LIGHTNING_TOKEN": stack.token or "",
    }
    before = {name: os.environ.get(name) for name in wanted}
    had_client = runtime.configured() is not None
    os.environ.update(wanted)
    try:
        yield
    finally:
        if not had_client and runtime.configured() is not None:
            runtime.shutdown()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
