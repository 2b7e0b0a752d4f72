"""Where the numbers of a run go: always a JSONL file; TensorBoard, Weights & Biases or MLflow where asked for.

A sink that fails stops no training: what goes wrong is told once, and it gets nothing more.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from lightning_sdk.errors import ConfigError
from lightning_sdk.training.metrics import Metrics

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes numbers."""

    def write(self, kind: str, rounds_done: int, metrics: Mapping[str, float]) -> None:
        """Take one line.

        Args:
            kind: "round" or "validation".
            rounds_done: rounds that were done by then.
            metrics: by name.
        """

    def close(self) -> None:
        """Everything is written."""


class JsonlSink:
    """A line of JSON each. What is no finite number is null."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, kind: str, rounds_done: int, metrics: Mapping[str, float]) -> None:
        """See `Sink.write`."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"kind": kind, "rounds_done": rounds_done, **finite}) + "\n")

    def close(self) -> None:
        """See `Sink.close`."""
        self._file.close()


class _TensorBoard:
    def __init__(self, module: Any, directory: Path, run_id: str) -> None:
        self._writer = module.SummaryWriter(str(directory / "tensorboard"))

    def write(self, kind: str, rounds_done: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(_full(kind, name), value, rounds_done)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, module: Any, directory: Path, run_id: str) -> None:
        self._run = module.init(id=run_id, resume="allow", dir=str(directory), project="lightning_sdk")

    def write(self, kind: str, rounds_done: int, metrics: Mapping[str, float]) -> None:
        self._run.log({_full(kind, name): value for name, value in metrics.items()}, step=rounds_done)

    def close(self) -> None:
        self._run.finish()


class _MlFlow:
    def __init__(self, module: Any, directory: Path, run_id: str) -> None:
        self._module = module
        module.start_run(run_name=run_id)

    def write(self, kind: str, rounds_done: int, metrics: Mapping[str, float]) -> None:
        finite = {_full(kind, name): value for name, value in metrics.items() if math.isfinite(value)}
        self._module.log_metrics(finite, step=rounds_done)

    def close(self) -> None:
        self._module.end_run()


def _full(kind: str, name: str) -> str:
    return name if kind == "round" else f"{kind}/{name}"


# Name in the settings → the module that must be there, what to install, and what is made of the module.
_KNOWN: Final[Mapping[str, tuple[tuple[str, ...], str, Callable[[Any, Path, str], Sink]]]] = {
    "tensorboard": (("torch.utils.tensorboard", "tensorboard"), "tensorboard and torch", _TensorBoard),
    "wandb": (("wandb",), "wandb", _WeightsAndBiases),
    "mlflow": (("mlflow",), "mlflow", _MlFlow),
}


def check_sinks(names: Sequence[str]) -> None:
    """Refuse before anything starts what is not installed.

    Raises:
        ConfigError: a module is missing.
    """
    for name in names:
        modules, distribution, _ = _KNOWN[name]
        for module in modules:
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                raise ConfigError(
                    f"report.sinks names {name}, which needs {distribution}: pip install it, or leave it out"
                )


class Sinks:
    """The JSONL file and whatever else was asked for."""

    def __init__(self, names: Sequence[str], metrics: Path, run_id: str) -> None:
        self._file = JsonlSink(metrics)
        self._others: dict[str, Sink] = {}
        for name in names:
            self._guard(name, partial(self._open, name, metrics.parent, run_id))

    def _open(self, name: str, directory: Path, run_id: str) -> None:
        modules, _, make = _KNOWN[name]
        self._others[name] = make(importlib.import_module(modules[0]), directory, run_id)

    def write(self, kind: str, rounds_done: int, metrics: Metrics) -> None:
        """To all of them."""
        self._file.write(kind, rounds_done, metrics)
        for name, sink in list(self._others.items()):
            self._guard(name, partial(sink.write, kind, rounds_done, metrics))

    def close(self) -> None:
        """All of them."""
        self._file.close()
        for name, sink in list(self._others.items()):
            self._guard(name, sink.close)

    def _guard(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a stranger's code, and only a report: the training goes on
            self._others.pop(name, None)
            _log.warning("%s takes no metrics from here on: %s: %s", name, type(error).__name__, error)
