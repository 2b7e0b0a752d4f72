"""The log probabilities that whoever publishes weights expects of them, against those that an engine computes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_sdk.errors import PublishError
from lightning_sdk.plugins import Probe


def check_probe(probe: Probe, vocabulary: int, context_length: int) -> None:
    """Refuse a probe that cannot be run.

    Raises:
        PublishError: it is empty, or its parts do not fit each other or the model.
    """
    if not probe.token_ids or len(probe.token_ids) != len(probe.logprobs):
        raise PublishError(
            f"the probe has {len(probe.token_ids)} sequences and {len(probe.logprobs)} lists of log "
            "probabilities: give as many of both, at least one"
        )
    if not probe.tolerance >= 0:
        raise PublishError(f"the probe's tolerance is {probe.tolerance}: give a number of at least 0")
    for place, (ids, logprobs) in enumerate(zip(probe.token_ids, probe.logprobs, strict=True)):
        if not 2 <= len(ids) <= context_length or len(logprobs) != len(ids) - 1:
            raise PublishError(
                f"sequence {place} of the probe has {len(ids)} tokens and {len(logprobs)} log probabilities: "
                f"expected 2 to {context_length} tokens, and one log probability for each but the first"
            )
        if not all(0 <= token < vocabulary for token in ids):
            raise PublishError(f"sequence {place} of the probe has a token outside of 0 to {vocabulary - 1}")


def compare(probe: Probe, scored: Sequence[Sequence[float]]) -> None:
    """Hold what an engine computed against a probe.

    Raises:
        PublishError: one log probability differs by more than the tolerance; the message says which the most.
    """
    worst, where = 0.0, (0, 0)
    for place, (expected, found) in enumerate(zip(probe.logprobs, scored, strict=True)):
        for token, (want, got) in enumerate(zip(expected, found, strict=True)):
            gap = abs(want - got)
            gap = gap if math.isfinite(gap) else math.inf
            if gap > worst:
                worst, where = gap, (place, token)
    if worst > probe.tolerance:
        place, token = where
        raise PublishError(
            f"the new weights do not compute here what the probe says: log probability {token} of sequence "
            f"{place} is {scored[place][token]:.4f}, expected {probe.logprobs[place][token]:.4f} within "
            f"{probe.tolerance:g}; the weights before serve on"
        )
