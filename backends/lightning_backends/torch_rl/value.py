"""The value head of `turn_gae`: what the rest of a rollout is worth, read off the last prompt token of a call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_backends.torch_rl.forward import run_trunk
from lightning_backends.torch_rl.layout import Ids, plan
from lightning_backends.torch_rl.model import LanguageModel
from lightning_backends.torch_rl.samples import Floats


class ValueHead(torch.nn.Module):
    """V = w h + b, which starts at 0. Without `trains_trunk` its loss does not reach the trunk."""

    def __init__(self, hidden_size: int, *, trains_trunk: bool) -> None:
        super().__init__()
        self.trains_trunk = trains_trunk
        self.linear = torch.nn.Linear(hidden_size, 1)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_CH: Tensor) -> Tensor:
        """Values, shape (C,)."""
        states = hidden_CH if self.trains_trunk else hidden_CH.detach()
        values: Tensor = self.linear(states.to(self.linear.weight.dtype))[:, 0]
        return values


def estimate(
    model: LanguageModel, head: ValueHead, rows: Sequence[Ids], *, budget: int | None, share_prefixes: bool
) -> Floats:
    """The value after the last token of each row, shape (rows,)."""
    values = np.empty(len(rows), dtype=np.float64)
    passes = plan(rows, budget=budget, share_prefixes=share_prefixes, plain_length=model.plain_length)
    with torch.no_grad():
        for each in passes:
            last = torch.tensor([int(path[-1]) for path in each.tree.path_L], device=model.device)
            found = head(run_trunk(model, each.tree)[last])
            values[list(each.rows)] = found.double().cpu().numpy()
    return values
