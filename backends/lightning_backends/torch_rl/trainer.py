"""The trainer as the training loop drives it. Torch is imported when it opens, not before."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from lightning_backends.torch_rl.options import Options
from lightning_sdk.errors import ConfigError, RunError
from lightning_sdk.mdp import Group
from lightning_sdk.plugins import Report, TrainingRun

if TYPE_CHECKING:
    from lightning_backends.torch_rl.learner import Learner


class TorchRLTrainer:
    """`plugins.Trainer` on torch and transformers, in this process. A publisher takes the weights."""

    fidelity: ClassVar[Literal["engine", "text"]] = "engine"
    mode: ClassVar[Literal["offline", "online"]] = "online"
    serves: ClassVar[bool] = False
    summary: ClassVar[str] = "LightningRL with torch on this machine, all weights or LoRA"

    def __init__(self, **options: Any) -> None:
        """Choose how to train; see `options.Options` and docs/torch-rl.md.

        Raises:
            ConfigError: an option that there is not, of another type, out of bounds, or that would do nothing.
        """
        self._options = Options.from_mapping(options)
        self._run: TrainingRun | None = None
        self._learner: Learner | None = None

    @classmethod
    def missing(cls) -> str | None:
        """What to install before it works, as one sentence; None when it is usable."""
        for name in ("torch", "transformers", "safetensors", "numpy"):
            if find_spec(name) is None:
                return f"{name} is not installed: pip install 'agent-lightning-sdk[torch]'"
        return None

    @property
    def endpoint(self) -> str | None:
        """None: the loop runs the endpoint."""
        return None

    def open(self, run: TrainingRun) -> None:
        """Load every policy.

        Raises:
            ConfigError: something is not installed, or a model cannot be trained with these options.
        """
        if (problem := self.missing()) is not None:
            raise ConfigError(f"torch_rl is not usable: {problem}")
        from lightning_backends.torch_rl.learner import Learner

        self._learner = Learner(run, self._options)
        self._run = run

    def consume(self, groups: Iterable[Group]) -> Report:
        """Learn from a batch of groups, and publish each policy that changed.

        Raises:
            PublishError: the endpoint does not take the weights.
        """
        return self._opened().consume(groups)

    def save(self, directory: Path) -> None:
        """Write all that the next round depends on into a directory that exists and is empty."""
        self._opened().save(directory)

    def restore(self, directory: Path) -> None:
        """Go on from what `save` wrote, and publish it again.

        Raises:
            RunError: it is no checkpoint of this run.
            PublishError: the endpoint does not take the weights.
        """
        self._opened().restore(directory)

    def export(self, directory: Path) -> Mapping[str, Path]:
        """Write each policy as a Hugging Face directory of its name."""
        return self._opened().export(directory)

    def close(self) -> None:
        """Let go of the models."""
        if self._run is not None:
            shutil.rmtree(self._run.directory / "trainer" / "publish", ignore_errors=True)
        self._run = None
        self._learner = None

    def _opened(self) -> Learner:
        if self._learner is None:
            raise RunError("the trainer is not open: call open(run) first")
        return self._learner
