"""What is trained of a row: its sampled tokens, as flat arrays.

Axes: T tokens of the row, K trained ones, C calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.sequences import Row

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Sample:
    """One row. `old_K` and `reference_K` are log probabilities that are filled in before the first step.

    Attributes:
        rollout: index of the rollout; samples of one rollout share it.
        input_T: what the model reads: the row without the last trained token and what follows it.
        place_K: where each trained token stands in the row, so that it is predicted from `place_K - 1`.
        call_K: which of the row's calls it belongs to, 0 to C - 1.
        behaviour_K: log probability of the sampler; NaN where not known.
        target_C: what the value before each call should be; NaN without a critic.
    """

    rollout: int
    input_T: NDArray[np.int32]
    place_K: NDArray[np.int64]
    token_K: NDArray[np.int64]
    call_K: NDArray[np.int64]
    advantage_K: Floats
    behaviour_K: Floats
    target_C: Floats
    old_K: Floats | None = field(default=None)
    reference_K: Floats | None = field(default=None)

    @property
    def tokens(self) -> int:
        """K, the trained tokens."""
        return len(self.token_K)

    @property
    def calls(self) -> int:
        """C, the trained calls."""
        return len(self.target_C)


def make_samples(rows: Iterable[Row], targets: dict[tuple[str, int], float] | None = None) -> list[Sample]:
    """Samples of rows of one policy, in their order.

    A sampled token that nothing comes before is left out: no model predicts it.

    Args:
        rows: of `build_rows`.
        targets: what the value before a call should be, by call id and choice.
    """
    rollouts: dict[str | None, int] = {}
    samples = []
    for row in rows:
        place_K = np.flatnonzero(row.loss_mask_T[1:]) + 1
        if not place_K.size:
            continue
        _, call_K = np.unique(row.call_T[place_K], return_inverse=True)
        kept = np.unique(row.call_T[place_K]).tolist()
        samples.append(
            Sample(
                rollout=rollouts.setdefault(row.rollout_id, len(rollouts)),
                input_T=row.token_ids_T[: place_K[-1]],
                place_K=place_K,
                token_K=row.token_ids_T[place_K].astype(np.int64),
                call_K=call_K.astype(np.int64),
                advantage_K=row.advantages_T[place_K],
                behaviour_K=row.behaviour_logprobs_T[place_K].astype(np.float64),
                target_C=np.array([(targets or {}).get(row.calls[at], np.nan) for at in kept]),
            )
        )
    return samples
