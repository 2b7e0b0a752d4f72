"""Log probabilities of trained tokens: forward passes over trees, and the head on the places that are asked for.

Axes: T tokens of a pass, K places that are asked for, V the vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lightning_backends.torch_rl.layout import Places, Tree
from lightning_backends.torch_rl.model import LanguageModel


@dataclass(frozen=True, slots=True)
class Scores:
    """Of K tokens, in nats, at the sampling temperature."""

    logprob_K: Tensor
    # Of the whole distribution that each was sampled from.
    entropy_K: Tensor


def run_trunk(model: LanguageModel, tree: Tree) -> Tensor:
    """Hidden states of all tokens of a pass, shape (T, H)."""
    device = model.device
    mask = None
    if not tree.is_chain:
        place = torch.arange(tree.tokens, device=device)
        end = torch.from_numpy(tree.end_T).to(device)
        mask = (place[None, :] <= place[:, None]) & (place[:, None] < end[None, :])
    return model.hidden(
        torch.from_numpy(tree.token_T).to(device), torch.from_numpy(tree.position_T).to(device), mask
    )


def predictors(tree: Tree, places: Sequence[Places]) -> Places:
    """Where in the pass stands what predicts the tokens at these places of its rows; the rows one after another."""
    return np.concatenate([path[place - 1] for path, place in zip(tree.path_L, places, strict=True)])


def score(
    model: LanguageModel,
    hidden_TH: Tensor,
    predictor_K: Places,
    token_K: Places,
    *,
    temperature: float,
    head_tokens: int,
    train_entropy: bool = False,
) -> Scores:
    """Log probabilities of tokens, each after the hidden state of its predictor.

    The head runs once for each place that predicts something. Beyond `head_tokens` places it runs in pieces, which
    the backward pass computes again, so that no more logits exist at one time.

    Args:
        model: whose head it is.
        hidden_TH: of `run_trunk`.
        predictor_K: places in the pass.
        token_K: what was sampled there.
        temperature: logits are divided by it.
        head_tokens: places of one piece.
        train_entropy: whether the entropy has a gradient.
    """
    unique, inverse = np.unique(predictor_K, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    bounds = np.searchsorted(inverse[order], np.arange(0, len(unique) + head_tokens, head_tokens))
    device = hidden_TH.device
    pieces = []
    for piece, first in enumerate(range(0, len(unique), head_tokens)):
        mine = order[bounds[piece] : bounds[piece + 1]]
        rows = torch.from_numpy(unique[first : first + head_tokens]).to(device)
        arguments = (
            model,
            hidden_TH[rows],
            torch.from_numpy(inverse[mine] - first).to(device),
            torch.from_numpy(token_K[mine]).to(device),
            temperature,
            train_entropy,
        )
        if len(unique) > head_tokens and torch.is_grad_enabled():
            pieces.append(checkpoint(_score_piece, *arguments, use_reentrant=False))
        else:
            pieces.append(_score_piece(*arguments))
    back = torch.from_numpy(np.argsort(order)).to(device)
    return Scores(
        logprob_K=torch.cat([logprobs for logprobs, _ in pieces])[back],
        entropy_K=torch.cat([entropies for _, entropies in pieces])[back],
    )


def _score_piece(
    model: LanguageModel,
    hidden_UH: Tensor,
    inverse_K: Tensor,
    token_K: Tensor,
    temperature: float,
    train_entropy: bool,
) -> tuple[Tensor, Tensor]:
    logits_UV = model.logits(hidden_UH) / temperature
    total_U = torch.logsumexp(logits_UV, dim=-1)
    logprob_K = logits_UV[inverse_K, token_K] - total_U[inverse_K]
    with torch.set_grad_enabled(train_entropy and torch.is_grad_enabled()):
        expected_U = (torch.exp(logits_UV - total_U[:, None]) * logits_UV).sum(-1)
        return logprob_K, (total_U - expected_U)[inverse_K]
