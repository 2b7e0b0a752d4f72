"""New weights to whoever serves them, with a probe of what they should compute."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from lightning_backends.torch_rl.forward import predictors, run_trunk, score
from lightning_backends.torch_rl.layout import Ids, build_tree
from lightning_backends.torch_rl.policy import TrainedPolicy
from lightning_backends.torch_rl.weights import published_dtype, write_model
from lightning_sdk.plugins import Probe, Publisher

_PROBE_TOKENS: Final = 64
_PROBE_ROWS: Final = 2
# The largest difference of a log probability that rounding explains.
_TOLERANCE: Final = 1e-2
_HALF_TOLERANCE: Final = 0.5


def publish(
    policy: TrainedPolicy, publisher: Publisher, directory: Path, *, version: int, rows: Sequence[Ids]
) -> None:
    """Write a policy's weights, let the endpoint take them, and delete them.

    Args:
        policy: whose `version` becomes `version` when they are taken.
        publisher: of the run.
        directory: to write below.
        version: of these weights.
        rows: token ids, of which the beginnings of some are the probe; without any it is made up.

    Raises:
        PublishError: the endpoint does not take them.
    """
    place = directory / f"{_safe(policy.name)}-{version}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        write_model(policy.model, place, policy.options)
        publisher.publish(policy.name, place, version=version, probe=make_probe(policy, rows))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    policy.version = version


def make_probe(policy: TrainedPolicy, rows: Sequence[Ids]) -> Probe:
    """Log probabilities of a few short sequences, at temperature 1."""
    made_up = (np.arange(_PROBE_TOKENS // 4) * 7 % policy.model.vocabulary).astype(np.int32)
    chosen = [row[:_PROBE_TOKENS] for row in rows if len(row) > 1][:_PROBE_ROWS] or [made_up]
    logprobs = []
    with torch.no_grad():
        for row in chosen:
            tree = build_tree([row], share_prefixes=False)
            places = np.arange(1, len(row), dtype=np.int64)
            found = score(
                policy.model,
                run_trunk(policy.model, tree),
                predictors(tree, [places]),
                row[1:].astype(np.int64),
                temperature=1.0,
                head_tokens=policy.options.head_tokens,
            )
            logprobs.append(found.logprob_K.double().cpu().tolist())
    exact = policy.model.autocast is None and published_dtype(policy.model, policy.options) == torch.float32
    return Probe(
        token_ids=[row.tolist() for row in chosen],
        logprobs=logprobs,
        tolerance=_TOLERANCE if exact else _HALF_TOLERANCE,
    )


def _safe(name: str) -> str:
    return "".join(each if each.isalnum() or each in "-_" else "_" for each in name)
