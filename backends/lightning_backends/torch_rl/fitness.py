"""Whether a model computes over packed trees, and by trunk and head, what it computes over plain rows."""

from __future__ import annotations

import numpy as np
import torch

from lightning_backends.torch_rl.forward import predictors, run_trunk, score
from lightning_backends.torch_rl.layout import Ids, plan
from lightning_backends.torch_rl.model import LanguageModel
from lightning_backends.torch_rl.options import Options
from lightning_sdk.errors import ConfigError


def check_fitness(model: LanguageModel, options: Options) -> None:
    """Compare a few made-up rows, some of which begin alike, with plain passes of one row.

    Raises:
        ConfigError: they differ: the model's attention is of another kind, or its head does more than we know.
    """
    rows = _rows(model.vocabulary)
    # The arithmetic of bfloat16 has 8 bits.
    tolerance = 1e-3 if model.autocast is None and model.network.dtype != torch.bfloat16 else 0.3
    kind = type(model.network).__name__
    try:
        with torch.no_grad():
            plain = [_plain(model, row) for row in rows]
            apart = _difference(model, rows, plain, budget=None, share_prefixes=False)
    except _FAULTS as error:
        raise ConfigError(f"{model.directory}: {kind} cannot be trained ({_why(error)})") from error
    if not apart <= tolerance:
        raise ConfigError(
            f"{model.directory}: {kind} cannot be trained: trunk and head give log probabilities that differ by "
            f"{apart:.2g} from the model's own; use a model whose logits are those of its head"
        )
    if not options.pack:
        return
    try:
        with torch.no_grad():
            packed = _difference(model, rows, plain, budget=100, share_prefixes=options.share_prefixes)
        why = f"log probabilities differ by {packed:.2g}" if not packed <= tolerance else None
    except _FAULTS as error:
        why = _why(error)
    if why is not None:
        raise ConfigError(
            f"{model.directory}: {kind} cannot be trained on packed rows ({why}): its attention is not plain causal "
            "attention; give pack=false and share_prefixes=false"
        )


# What a model raises that is run in another way than it is made for.
_FAULTS = (RuntimeError, TypeError, AttributeError, IndexError, ValueError)


def _why(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _rows(vocabulary: int) -> list[Ids]:
    stem = [1, 7, 3, 5, 2, 11]
    ends = [[4, 9, 6, 8], [4, 9, 1, 3, 2], [10, 3, 4]]
    lines = [stem + end for end in ends] + [[5, 2, 6, 1, 9, 3, 3, 8]]
    return [np.array([1 + each % (vocabulary - 1) for each in line], dtype=np.int32) for line in lines]


def _plain(model: LanguageModel, row: Ids) -> torch.Tensor:
    ids = torch.from_numpy(row.astype(np.int64)).to(model.device)
    with model.arithmetic():
        logits = model.network(input_ids=ids[None], use_cache=False).logits[0, :-1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]


def _difference(
    model: LanguageModel,
    rows: list[Ids],
    plain: list[torch.Tensor],
    *,
    budget: int | None,
    share_prefixes: bool,
) -> float:
    largest = 0.0
    for each in plan(rows, budget=budget, share_prefixes=share_prefixes, plain_length=model.plain_length):
        places = [np.arange(1, len(rows[at]), dtype=np.int64) for at in each.rows]
        tokens = np.concatenate([rows[at][1:] for at in each.rows]).astype(np.int64)
        hidden = run_trunk(model, each.tree)
        ours = score(
            model, hidden, predictors(each.tree, places), tokens, temperature=1.0, head_tokens=4096
        ).logprob_K
        difference = float((ours - torch.cat([plain[at] for at in each.rows])).abs().max())
        largest = max(largest, difference) if difference == difference else float("inf")
    return largest
