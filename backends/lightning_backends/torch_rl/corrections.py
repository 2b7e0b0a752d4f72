"""Weights for what sampler and trainer disagree about: rho_t = pi_old(t) / mu(t), mu what sampled t.

Axes: K trained tokens of a forward pass, C calls. Weights are constants, and change no normaliser.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from lightning_backends.torch_rl.losses import call_means
from lightning_backends.torch_rl.options import Options

CAP: Final = 2.0
ICEPOP_LOW: Final = 0.5
ICEPOP_HIGH: Final = 5.0
# Bounds on a call's mean ratio, and on its product, where the options say none.
GEOMETRIC: Final = (0.99, 1.01)
PRODUCT: Final = (0.5, 2.0)
_MOST_LOG_RATIO: Final = 20.0


def correct(old_K: Tensor, behaviour_K: Tensor, call_K: Tensor, calls: int, options: Options) -> Tensor:
    """The weight of each token, shape (K,).

    - "tis": min(rho, cap), cap 2. Yao et al., "Your efficient RL framework secretly brings you off-policy RL
      training" (2025).
    - "icepop": rho where it is in [0.5, 5], else 0. Ring-1T, arXiv:2510.18855.
    - "none": 1.
    - `sequence_mask`: 0 for all tokens of a call whose geometric mean ("geometric", [0.99, 1.01]) or product
      ("product", [0.5, 2]) of rho is outside. Per call, so that merging calls changes nothing.

    A token whose mu is not known has rho 1.
    """
    log_rho_K = (old_K - behaviour_K).clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO)
    log_rho_K = torch.where(torch.isnan(log_rho_K), 0.0, log_rho_K)
    rho_K = torch.exp(log_rho_K)
    if options.correction == "tis":
        weight_K = rho_K.clamp(max=_or(options.correction_cap, CAP))
    elif options.correction == "icepop":
        low, high = _or(options.correction_low, ICEPOP_LOW), _or(options.correction_high, ICEPOP_HIGH)
        weight_K = torch.where((rho_K >= low) & (rho_K <= high), rho_K, 0.0)
    else:
        weight_K = torch.ones_like(rho_K)
    if options.sequence_mask is None:
        return weight_K
    if options.sequence_mask == "geometric":
        level_C, bounds = call_means(log_rho_K, call_K, calls), GEOMETRIC
    else:
        level_C, bounds = log_rho_K.new_zeros(calls).index_add(0, call_K, log_rho_K), PRODUCT
    low, high = _or(options.sequence_mask_low, bounds[0]), _or(options.sequence_mask_high, bounds[1])
    ratio_C = torch.exp(level_C)
    kept_C = (ratio_C >= low) & (ratio_C <= high)
    return torch.where(kept_C[call_K], weight_K, 0.0)


def _or(given: float | None, own: float) -> float:
    return own if given is None else given
