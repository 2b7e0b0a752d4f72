"""The learning rate of an optimiser step."""

from __future__ import annotations

import math

from lightning_backends.torch_rl.options import Options


def learning_rate_factor(step: int, options: Options) -> float:
    """What the learning rate is multiplied by in optimiser step `step`, from 0.

    It rises for `warmup_steps` in equal parts, (step + 1) / warmup_steps; then it is constant, or falls to
    `final_learning_rate` (0) at `total_steps`, along a line or half a cosine, and stays there.
    """
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    if options.schedule == "constant" or options.total_steps is None:
        return 1.0
    left = options.total_steps - options.warmup_steps
    progress = min(1.0, (step - options.warmup_steps) / left)
    final = options.final_learning_rate or 0.0
    shape = 1 - progress if options.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return final + (1 - final) * shape
