"""Backend `torch_rl`: LightningRL on one machine, for any causal language model of Hugging Face."""

from __future__ import annotations

from lightning_backends.torch_rl.trainer import TorchRLTrainer

__all__ = ["TorchRLTrainer"]
