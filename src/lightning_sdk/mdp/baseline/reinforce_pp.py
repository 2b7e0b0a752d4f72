"""REINFORCE++: whitening over the tokens of the batch. The exception: these statistics count tokens, not rollouts."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.baseline.cells import By, check_epsilon, keys_by
from lightning_sdk.mdp.baseline.compare import NO_VARIANCE, Baselined, LoneAgent, Sheet, compare
from lightning_sdk.mdp.baseline.mean import subtract_mean
from lightning_sdk.mdp.table import CallTable


def reinforce_pp(table: CallTable, value_C: NDArray[np.float64], *, epsilon: float = 1e-8) -> Baselined:
    """A = (value - μ) / sqrt(σ² + ε), with μ and σ² (n - 1) over all trained tokens of the policy's batch.

    Every token of a call has the call's credit, so a call weighs as much as it has response tokens: long answers, and
    rollouts with many calls, weigh more. That is as published, and the exception to "statistics count rollouts".

    Shapes: value_C (C,), and so the results. The batch is all groups given, by policy.
    Group of one: no groups here. Zero variance: all tokens of a policy's batch worth the same: 0, skipped.
    Raises: ConfigError where a trained call has no token ids to count.
    Source: Hu et al., arXiv:2501.03262.
    Deviation: the credit takes the place of Σ gamma^k r over tokens, so nothing is discounted within a call, and a KL
    term belongs into the loss, not the reward.
    """
    sheet = Sheet(table, value_C)
    counting = table.decision_C & table.in_baseline_E[table.episode_C]
    _whiten(sheet, value_C, counting, epsilon)
    return sheet.finish()


def reinforce_pp_baseline(
    table: CallTable,
    value_C: NDArray[np.float64],
    *,
    epsilon: float = 1e-8,
    by: By = "agent",
    lone_agent: LoneAgent = "zero",
) -> Baselined:
    """A = (d - μ) / sqrt(σ² + ε), d = value - mean of the entries of the cell; μ, σ² over the batch's trained tokens.

    The mean counts rollouts; the whitening counts tokens, as published: the exception to "statistics count rollouts".

    Shapes: value_C (C,), and so the results. The batch is all groups given, by policy.
    Group of one: 0, skipped, no part of the whitening (verl subtracts nothing from it). Zero variance: all credits of
    a cell equal: 0, skipped, no part of the whitening (published: zeros that take part).
    Raises: ConfigError where a trained call has no token ids to count.
    Source: Hu et al., arXiv:2501.03262.
    Deviation: as said, and the mean is by (group, agent) over rollouts.
    """
    centred = compare(table, value_C, subtract_mean, by=by, lone_agent=lone_agent)
    sheet = Sheet(table, value_C)
    sheet.reason_C = list(centred.reason_C)
    sheet.skipped = list(centred.skipped)
    sheet.counts.update(centred.counts)
    skipped = np.array([reason is not None for reason in centred.reason_C], dtype=np.bool_)
    sheet.baseline_C[skipped] = centred.baseline_C[skipped]
    sheet.scale_C[skipped] = 1.0
    counting = table.decision_C & table.in_baseline_E[table.episode_C] & ~skipped
    _whiten(sheet, centred.advantage_C, counting, epsilon)
    sheet.baseline_C[counting] += centred.baseline_C[counting]
    return sheet.finish()


def _whiten(
    sheet: Sheet, value_C: NDArray[np.float64], counting_C: NDArray[np.bool_], epsilon: float
) -> None:
    """Fill in mean and scale of the rows that count, from the tokens of those that are trained."""
    check_epsilon(epsilon)
    table = sheet.table
    trained_C = counting_C & table.selected_C & table.in_loss_E[table.episode_C]
    policies = [transition.policy for transition in table.transitions]
    for policy in sorted(set(policies), key=lambda name: name or ""):
        ours = counting_C & np.array([each == policy for each in policies], dtype=np.bool_)
        rows = np.flatnonzero(ours & trained_C).tolist()
        if not rows:
            continue
        tokens = [_tokens(table, row) for row in rows]
        values = [float(value_C[row]) for row in rows]
        if min(values) == max(values):
            _skip_all(sheet, np.flatnonzero(ours).tolist())
            continue
        total = sum(tokens)
        if not math.isfinite(total * (max(values) - min(values))):
            raise OverflowError  # as the sums below would, or be NaN
        middle = math.fsum(n * value for n, value in zip(tokens, values, strict=True)) / total
        squares = math.fsum(n * (value - middle) ** 2 for n, value in zip(tokens, values, strict=True))
        sheet.baseline_C[ours] = middle
        sheet.scale_C[ours] = math.sqrt(squares / (total - 1) + epsilon)


def _skip_all(sheet: Sheet, rows: list[int]) -> None:
    keys = keys_by(sheet.table, "group")
    for group in dict.fromkeys(keys[row][0] for row in rows):
        members = [row for row in rows if keys[row][0] == group]
        sheet.skip(members, (sheet.table.groups[group].group_id, None), NO_VARIANCE)


def _tokens(table: CallTable, row: int) -> int:
    ids = table.transitions[row].response_token_ids
    if not ids:
        raise ConfigError(
            f"reinforce++ counts tokens, and {table.name_of(row)} has no token ids; "
            "select engine calls only, or choose a baseline that counts rollouts"
        )
    return len(ids)
