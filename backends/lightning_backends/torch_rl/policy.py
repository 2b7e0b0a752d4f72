"""A policy in training: its model and optimiser, and what it is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch

from lightning_backends.torch_rl.fitness import check_fitness
from lightning_backends.torch_rl.model import LanguageModel, load_model
from lightning_backends.torch_rl.options import Options
from lightning_backends.torch_rl.reference import Reference, load_reference
from lightning_backends.torch_rl.schedule import learning_rate_factor
from lightning_backends.torch_rl.value import ValueHead

LEARNING_RATE: Final = 1e-6
ADAPTER_LEARNING_RATE: Final = 5e-5
VALUE_LEARNING_RATE: Final = 1e-4
MICRO_BATCH_TOKENS: Final = {"cpu": 1024, "cuda": 8192}


class TrainedPolicy:
    """One policy.

    Attributes:
        version: of the weights that were published last; 0 is what the run began with.
        steps: optimiser steps so far.
    """

    def __init__(self, name: str, directory: Path, options: Options) -> None:
        """Load it.

        Raises:
            ConfigError: it cannot be loaded, or trained with these options.
        """
        self.name = name
        self.options = options
        self.version = 0
        self.steps = 0
        self.model: LanguageModel = load_model(directory, options)
        check_fitness(self.model, options)
        self.reference: Reference | None = load_reference(self.model, options)
        self.value_head: ValueHead | None = None
        if options.is_critic:
            head = ValueHead(self.model.hidden_size, trains_trunk=bool(options.value_trains_trunk))
            self.value_head = head.to(self.model.device)
        self.optimiser = self._make_optimiser()

    @property
    def budget(self) -> int | None:
        """Tokens of one forward pass; None: each row has one of its own."""
        if not self.options.pack:
            return None
        return self.options.micro_batch_tokens or MICRO_BATCH_TOKENS[self.model.device.type]

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Everything that the optimiser changes, by name."""
        own = self.model.parameters()
        if self.value_head is not None:
            own.update({f"value_head.{name}": each for name, each in self.value_head.named_parameters()})
        return own

    def set_learning_rate(self) -> float:
        """Make it that of the step that comes; returns that of the policy's weights."""
        factor = learning_rate_factor(self.steps, self.options)
        for group in self.optimiser.param_groups:
            group["lr"] = group["initial_lr"] * factor
        rate: float = self.optimiser.param_groups[0]["lr"]
        return rate

    def _make_optimiser(self) -> torch.optim.AdamW:
        options = self.options
        own = ADAPTER_LEARNING_RATE if options.lora_rank is not None else LEARNING_RATE
        rate = options.learning_rate or own
        groups: list[dict[str, Any]] = [
            {"params": list(self.model.parameters().values()), "lr": rate, "initial_lr": rate}
        ]
        if self.value_head is not None:
            rate = options.value_learning_rate or VALUE_LEARNING_RATE
            groups.append({"params": list(self.value_head.parameters()), "lr": rate, "initial_lr": rate})
        return torch.optim.AdamW(
            groups,
            betas=(options.beta1, options.beta2),
            eps=options.adam_epsilon,
            weight_decay=options.weight_decay,
            fused=True,
        )
