"""A run's directory, `.lightning/runs/<run_id>/`, and the checkpoints in it.

config.json            the settings
state.json             where the run stands, for people and programs that look on
metrics.jsonl          a line a round, and a line a validation
checkpoints/round-000010/state.json     what a resumed run goes on from
checkpoints/round-000010/trainer/       written by the trainer
samples/               rollouts to read
models/, best/         models at the end, and those of the best validation
trainer/               the trainer's own
published/, weights/   while it runs: what was published last, and what a started endpoint reads
journal.jsonl          its rollouts (rollouts/journal.py)
lock                   held by the process that runs it
curve.svg, curve.png   rewards by round
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lightning_sdk.errors import ConfigError, RunError
from lightning_sdk.home import Home
from lightning_sdk.rollouts.journal import run_directory
from lightning_sdk.training.settings import Settings
from lightning_sdk.training.stopping import Stopping

_FORMAT: Final = 1


@dataclass
class RunState:
    """What the next round depends on, beside the trainer's own.

    Which tasks it takes follows from the settings' seed and `rounds_done`; so does the seed of each rollout.
    """

    rounds_done: int = 0
    # The version of each policy that the endpoint serves.
    versions: dict[str, int] = field(default_factory=dict)
    # Rounds that were done at the last validation; None before the first.
    validated_at: int | None = None
    stopping: Stopping = field(default_factory=Stopping)

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "format": _FORMAT,
            "rounds_done": self.rounds_done,
            "versions": dict(self.versions),
            "validated_at": self.validated_at,
            "stopping": self.stopping.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunState:
        """What `to_json` gave.

        Raises:
            RunError: it was written by another version.
        """
        if value.get("format") != _FORMAT:
            raise RunError(
                f"the checkpoint has format {value.get('format')!r}, and this version reads {_FORMAT}: "
                "resume it with the version that wrote it"
            )
        return cls(
            rounds_done=value["rounds_done"],
            versions=dict(value["versions"]),
            validated_at=value["validated_at"],
            stopping=Stopping.from_json(value["stopping"]),
        )


class RunDirectory:
    """The directory of one run, held by one process at a time. Use `create` or `reopen`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.metrics = path / "metrics.jsonl"
        self.samples = path / "samples"
        self._checkpoints = path / "checkpoints"

    @classmethod
    @contextmanager
    def create(cls, home: Home, run_id: str, settings: Settings) -> Iterator[RunDirectory]:
        """Make the directory of a new run, and hold it.

        Raises:
            ConfigError: the id cannot name a directory, or is taken.
        """
        directory = cls(_path_of(home, run_id))
        home.ensure()
        _runs(home).mkdir(mode=0o700, exist_ok=True)
        directory.path.mkdir(mode=0o700, exist_ok=True)
        with directory._held():
            if (directory.path / "config.json").exists():
                raise ConfigError(
                    f"run {run_id} exists: go on with it by --resume {run_id}, or choose another --run-id"
                )
            _write_json(directory.path / "config.json", settings.model_dump(mode="json"))
            yield directory

    @classmethod
    @contextmanager
    def reopen(cls, home: Home, run_id: str) -> Iterator[RunDirectory]:
        """Hold the directory of a run that was begun before.

        Raises:
            ConfigError: there is no such run.
            RunError: another process holds it.
        """
        cls.stored_settings(home, run_id)
        directory = cls(_path_of(home, run_id))
        with directory._held():
            yield directory

    @staticmethod
    def stored_settings(home: Home, run_id: str) -> dict[str, dict[str, Any]]:
        """The tables that a run was begun with.

        Raises:
            ConfigError: there is no such run.
        """
        path = _path_of(home, run_id) / "config.json"
        if not path.is_file():
            known = sorted(each.parent.name for each in _runs(home).glob("*/config.json"))
            raise ConfigError(
                f"there is no run {run_id!r} of training in {_runs(home)}: "
                f"there are {', '.join(known[-5:]) or 'none'}"
            )
        return _read_json(path)

    @contextmanager
    def _held(self) -> Iterator[None]:
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"run {self.run_id} is running in another process: stop that one, or wait for its end"
                ) from None
            yield

    def tell(self, state: RunState, status: str, **more: Any) -> None:
        """Write `state.json`: where the run stands."""
        _write_json(self.path / "state.json", {"status": status, **state.to_json(), **more})

    def replace(self, name: str, write: Callable[[Path], Mapping[str, Path]]) -> dict[str, Path]:
        """Let a function fill a directory of that name anew; what it gives, as paths in it.

        The old one stays until the new one is whole.
        """
        unfinished, old = self.path / f".{name}.new", self.path / f".{name}.old"
        for leftover in (unfinished, old):
            shutil.rmtree(leftover, ignore_errors=True)
        unfinished.mkdir()
        written = write(unfinished)
        target = self.path / name
        if target.exists():
            target.rename(old)
        unfinished.rename(target)
        shutil.rmtree(old, ignore_errors=True)
        return {key: target / path.relative_to(unfinished) for key, path in written.items()}

    def begin_checkpoint(self) -> Path:
        """An empty directory for the trainer. What is written there counts only after `finish_checkpoint`."""
        self._checkpoints.mkdir(exist_ok=True)
        shutil.rmtree(self._unfinished, ignore_errors=True)
        trainer = self._unfinished / "trainer"
        trainer.mkdir(parents=True)
        return trainer

    def finish_checkpoint(self, state: RunState, *, keep: int) -> Path:
        """Give the checkpoint its name, at once and whole, and delete all but the latest `keep`."""
        _write_json(self._unfinished / "state.json", state.to_json())
        _sync(self._unfinished)
        target = self._checkpoints / f"round-{state.rounds_done:06d}"
        if target.exists():
            # The same state, saved again: the one that is there stays until the new one is whole.
            target.rename(self._checkpoints / ".replaced")
        self._unfinished.rename(target)
        shutil.rmtree(self._checkpoints / ".replaced", ignore_errors=True)
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old)
        return target

    @property
    def _unfinished(self) -> Path:
        return self._checkpoints / ".unfinished"

    def checkpoints(self) -> list[Path]:
        """Whole ones, the latest last."""
        return sorted(self._checkpoints.glob("round-*"))

    def latest(self) -> tuple[RunState, Path] | None:
        """The state of the latest checkpoint, and the trainer's directory in it; None before the first.

        Raises:
            RunError: it was written by another version.
        """
        replaced = self._checkpoints / ".replaced"
        if replaced.exists():  # the process ended between two renames
            target = self._checkpoints / f"round-{_read_json(replaced / 'state.json')['rounds_done']:06d}"
            if target.exists():
                shutil.rmtree(replaced)
            else:
                replaced.rename(target)
        found = self.checkpoints()
        if not found:
            return None
        return RunState.from_json(_read_json(found[-1] / "state.json")), found[-1] / "trainer"

    def forget_after(self, state: RunState) -> None:
        """Cut off the metrics of what a resumed run does again. A line that a kill cut short goes too."""
        if not self.metrics.exists():
            return
        last = {
            "round": state.rounds_done,
            "validation": -1 if state.validated_at is None else state.validated_at,
        }
        kept = []
        for line in self.metrics.read_text().splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if value["rounds_done"] <= last[value["kind"]]:
                kept.append(line)
        unfinished = self.metrics.with_suffix(".new")
        unfinished.write_text("".join(f"{line}\n" for line in kept))
        unfinished.replace(self.metrics)


def _runs(home: Home) -> Path:
    return home.path / "runs"


def _path_of(home: Home, run_id: str) -> Path:
    try:
        return run_directory(home, run_id)
    except RunError as error:
        raise ConfigError(str(error)) from None


def _read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Whoever reads sees the old file or the new one, whole."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_text(json.dumps(value, indent=1, default=str) + "\n")
    unfinished.replace(path)


def _sync(directory: Path) -> None:
    """Bring a directory's files to the disk, so that a rename never outlives what it names."""
    for path in [*directory.rglob("*"), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
