"""Losses of tokens. Pure functions of log probabilities; how tokens add up is `aggregation`'s.

Axes: K trained tokens of a forward pass, C calls. r_t = pi(t) / pi_old(t); A_t the advantage, w_t the correction, a
constant each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from lightning_backends.torch_rl.options import LossName, Options

# e to this is far beyond any clip.
_MOST_LOG_RATIO: Final = 20.0


@dataclass(frozen=True, slots=True)
class Clip:
    """The ratio stays in [1 - low, 1 + high]; None: no bound below. `dual`: see `ppo`; None: not used."""

    low: float | None
    high: float
    dual: float | None = None


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """What a loss reads. Only `logprob_K` has a gradient."""

    logprob_K: Tensor
    old_K: Tensor
    advantage_K: Tensor
    correction_K: Tensor
    # int64, 0 to calls - 1; the tokens of a call are all in one pass.
    call_K: Tensor
    calls: int


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The loss of each token, and whether clipping took its gradient."""

    loss_K: Tensor
    clipped_K: Tensor


def ppo(terms: TokenTerms, clip: Clip) -> TokenLoss:
    """-w min(r A, clip(r, 1 - low, 1 + high) A); where A < 0 no more than -w dual A.

    Source: Schulman et al., arXiv:1707.06347; the higher bound above, DAPO, arXiv:2503.14476; the dual clip, Ye et
    al., arXiv:1912.09729.
    """
    return _clipped(_ratio(terms), terms, clip)


def cispo(terms: TokenTerms, clip: Clip) -> TokenLoss:
    """-w sg(min(r, 1 + high)) A log pi: the weight is clipped, and no token loses its gradient.

    Source: MiniMax-M1, arXiv:2506.13585, which has no bound below; `clip.low` adds one.
    """
    ratio_K = _ratio(terms).detach()
    low = 0.0 if clip.low is None else 1 - clip.low
    weight_K = ratio_K.clamp(low, 1 + clip.high)
    loss_K = -terms.correction_K * weight_K * terms.advantage_K * terms.logprob_K
    return TokenLoss(loss_K, weight_K != ratio_K)


def gspo(terms: TokenTerms, clip: Clip) -> TokenLoss:
    """As `ppo` without dual clip, with s_t = sg(s) r_t / sg(r_t) for r_t, where s = exp(mean of log r over the call).

    The sequence of the paper is one response to one prompt: here a call, however calls are merged into rows.
    Source: Zheng et al., arXiv:2507.18071, GSPO-token (its gradient by token).
    """
    log_ratio_K = _log_ratio(terms)
    mean_C = call_means(log_ratio_K.detach(), terms.call_K, terms.calls)
    ratio_K = torch.exp(mean_C[terms.call_K] + log_ratio_K - log_ratio_K.detach())
    return _clipped(ratio_K, terms, clip)


LOSSES: Final[dict[LossName, Callable[[TokenTerms, Clip], TokenLoss]]] = {
    "ppo": ppo,
    "cispo": cispo,
    "gspo": gspo,
    "dr_grpo": ppo,  # what it is named for is its aggregation
}
_CLIPS: Final[dict[LossName, Clip]] = {
    "ppo": Clip(0.2, 0.28, 3.0),
    "cispo": Clip(None, 0.28),
    "gspo": Clip(3e-4, 4e-4),
    "dr_grpo": Clip(0.2, 0.28, 3.0),
}


def clip_of(options: Options) -> Clip:
    """The loss's own clip range, with what the options say instead."""
    own = _CLIPS[options.loss]
    return Clip(
        low=own.low if options.clip_low is None else options.clip_low,
        high=own.high if options.clip_high is None else options.clip_high,
        dual=own.dual if options.dual_clip is None else options.dual_clip,
    )


def divergence(logprob_K: Tensor, reference_K: Tensor, estimator: str) -> Tensor:
    """An estimate of KL(pi || reference) for each sampled token, with d = log pi - log reference.

    "k2": d² / 2, whose gradient is that of the divergence where tokens were sampled from pi. "k3": e^-d + d - 1, as
    in GRPO: never negative, unbiased as a number.
    Source: Schulman, "Approximating KL divergence" (2020); GRPO, arXiv:2402.03300.
    """
    difference_K = (logprob_K - reference_K).clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO)
    if estimator == "k2":
        return difference_K.square() / 2
    return torch.exp(-difference_K) + difference_K - 1


def call_means(value_K: Tensor, call_K: Tensor, calls: int) -> Tensor:
    """The mean over the tokens of each call, shape (C,)."""
    sums_C = value_K.new_zeros(calls).index_add(0, call_K, value_K)
    counts_C = value_K.new_zeros(calls).index_add(0, call_K, torch.ones_like(value_K))
    return sums_C / counts_C


def _log_ratio(terms: TokenTerms) -> Tensor:
    return (terms.logprob_K - terms.old_K).clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO)


def _ratio(terms: TokenTerms) -> Tensor:
    return torch.exp(_log_ratio(terms))


def _clipped(ratio_K: Tensor, terms: TokenTerms, clip: Clip) -> TokenLoss:
    advantage_K = terms.advantage_K
    low = 0.0 if clip.low is None else 1 - clip.low
    plain_K = ratio_K * advantage_K
    bounded_K = ratio_K.clamp(low, 1 + clip.high) * advantage_K
    gain_K = torch.minimum(plain_K, bounded_K)
    clipped_K = bounded_K < plain_K
    if clip.dual is not None:
        floor_K = torch.where(advantage_K < 0, clip.dual * advantage_K, -torch.inf)
        clipped_K = clipped_K | (floor_K > gain_K)
        gain_K = torch.maximum(gain_K, floor_K)
    return TokenLoss(-terms.correction_K * gain_K, clipped_K.detach())
