"""Training: tasks, rollouts, episodes, a trainer, a new policy version, next tasks. docs/training.md tells how."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_sdk.errors import ConfigError
from lightning_sdk.home import Home, StrPath

if TYPE_CHECKING:
    from lightning_sdk.training.run import TrainingResult
    from lightning_sdk.training.settings import Settings

__all__ = ["train"]


def train(
    agent: str | Callable[..., Any] | None = None,
    *,
    tasks: StrPath | Iterable[Any] | None = None,
    model: StrPath | None = None,
    backend: str | None = None,
    validation: StrPath | Iterable[Any] | None = None,
    config: StrPath | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    run_id: str | None = None,
    resume: str | None = None,
    home: StrPath | None = None,
) -> TrainingResult:
    """Train the model of an agent on tasks, as `lsdk train` does. Returns when the run is over.

        lightning_sdk.train("my_agent:solve", tasks="train.jsonl", model="./model", backend="torch_rl",
                            settings={"backend": {"learning_rate": 1e-5}})

    The agent runs in processes of its own, which import it by name. Call this in the main thread of a program
    whose file has `if __name__ == "__main__":` around it, so that Ctrl-C saves a checkpoint.

    Args:
        agent: "module:function", or the function itself where it can be imported by that name.
        tasks: a file or data set as for `lsdk run`, or rows.
        model: directory of the model that is trained, where there is one.
        backend: who trains.
        validation: held-out tasks, as `tasks`.
        config: a TOML file with any of the settings.
        settings: tables of settings, as in that file, and stronger.
        run_id: default: a fresh one.
        resume: the id of a run to go on with; all else comes from its directory then, where it is not given.
        home: the state directory.

    Raises:
        ConfigError: a setting cannot be used. Nothing was started.
        LightningError: the run cannot go on; the message says how to resume it.
    """
    from lightning_sdk.training.run import run_training

    is_file = isinstance(tasks, str | os.PathLike)
    held_out_is_file = isinstance(validation, str | os.PathLike)
    tables = {
        "run": {"agent": _name_of(agent), "tasks": str(tasks) if is_file else None},
        "backend": {"name": backend},
        "validation": {"tasks": str(validation) if held_out_is_file else None},
    }
    return run_training(
        gather(
            config=config, tables=[settings or {}, tables], model=model, resume=resume, home=Home.locate(home)
        ),
        run_id=resume or run_id,
        resume=resume is not None,
        home=home,
        tasks=None if is_file else tasks,  # type: ignore[arg-type]
        held_out=None if held_out_is_file else validation,  # type: ignore[arg-type]
    )


def gather(
    *,
    config: StrPath | None,
    tables: Iterable[Mapping[str, Mapping[str, Any]]],
    model: StrPath | None,
    resume: str | None,
    home: Home,
    overrides: Iterable[str] = (),
) -> Settings:
    """Settings from everything that may hold some, each stronger than the one before.

    A resumed run's own, or a file's; tables; a model; overrides.

    Raises:
        ConfigError: a setting cannot be used, or there is no run to resume.
    """
    from lightning_sdk.training.config import load_settings, one_policy
    from lightning_sdk.training.state import RunDirectory

    merged: dict[str, dict[str, Any]] = {}
    if resume is not None:
        if config is not None:
            raise ConfigError(
                f"run {resume} has its settings already: give single ones with -o instead of a file"
            )
        merged = RunDirectory.stored_settings(home, resume)
    for each in tables:
        for name, table in each.items():
            merged.setdefault(name, {}).update(
                {key: value for key, value in table.items() if value is not None}
            )
    policies = one_policy(model)
    if policies is not None:
        merged["policies"] = dict(policies)
    return load_settings(None if config is None else Path(config), overrides, merged)


def _name_of(agent: str | Callable[..., Any] | None) -> str | None:
    if agent is None or isinstance(agent, str):
        return agent
    module, name = getattr(agent, "__module__", None), getattr(agent, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        raise ConfigError(
            f"the agent {agent!r} cannot be imported by name in another process: put the function into a module, "
            "and give it as module:function"
        )
    return f"{module}:{name}"
