"""How the losses of an update's tokens add up: a weight for each token, the same in every micro-batch.

The normalisers are those of the whole update, so that neither packing nor the size of a micro-batch changes
anything. What a correction or a mask takes out keeps its place in them. Axis: S samples (rows).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_backends.torch_rl.options import Options
from lightning_backends.torch_rl.samples import Floats, Sample
from lightning_sdk.errors import ConfigError


def token_weights(samples: Sequence[Sample], options: Options, max_tokens: int | None) -> list[Floats]:
    """What each trained token of each sample weighs in the loss of one update.

    - "rollout": 1/R 1/N_i, over R rollouts and the N_i trained tokens of each.
    - "token": 1/N over all trained tokens. Long rollouts weigh more (DAPO, arXiv:2503.14476).
    - "sequence": 1/C 1/n_c over C calls and the n_c tokens of each. Rollouts of many calls weigh more (the mean over
      sequences of GRPO, arXiv:2402.03300, and of GSPO).
    - loss dr_grpo: 1/R 1/L, L a constant (Liu et al., arXiv:2503.20783, whose rollouts are single responses).
    """
    if options.loss == "dr_grpo":
        weight = 1.0 / (count_rollouts(samples) * constant_length(options, max_tokens))
        return [np.full(each.tokens, weight) for each in samples]
    if options.aggregation == "token":
        weight = 1.0 / sum(each.tokens for each in samples)
        return [np.full(each.tokens, weight) for each in samples]
    if options.aggregation == "sequence":
        calls = sum(each.calls for each in samples)
        return [
            1.0 / (calls * np.bincount(each.call_K, minlength=each.calls)[each.call_K]) for each in samples
        ]
    tokens = np.bincount([each.rollout for each in samples], [each.tokens for each in samples])
    rollouts = count_rollouts(samples)
    return [np.full(each.tokens, 1.0 / (rollouts * tokens[each.rollout])) for each in samples]


def call_weights(samples: Sequence[Sample]) -> list[Floats]:
    """What each trained call weighs in the value loss: 1/R over rollouts, 1/C_i over the calls of each."""
    calls = np.bincount([each.rollout for each in samples], [each.calls for each in samples])
    rollouts = count_rollouts(samples)
    return [np.full(each.calls, 1.0 / (rollouts * calls[each.rollout])) for each in samples]


def count_rollouts(samples: Sequence[Sample]) -> int:
    """R, the rollouts with a trained token."""
    return len({each.rollout for each in samples})


def constant_length(options: Options, max_tokens: int | None) -> int:
    """L of loss dr_grpo.

    Raises:
        ConfigError: neither the option nor the run says.
    """
    length = options.loss_length or max_tokens
    if length is None:
        raise ConfigError(
            "loss dr_grpo divides by a constant length: give loss_length, or limit the run with max_tokens"
        )
    return length
