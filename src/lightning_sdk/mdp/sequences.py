"""Training rows: the chains of a rollout as token ids, with what the loss needs of each token.

Axes: T tokens of one row, R rows. A row says for every token whether it is trained, by which policy version and
with which log probability it was sampled, its advantage, and the call that it is part of; so whatever is
computed by call (a sequence-level ratio, an id check) does not change when calls are merged or taken apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.advantages import Advantages, Aggregation
from lightning_sdk.mdp.chains import Chain, ChainForest, build_chains
from lightning_sdk.mdp.episode import Transition


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One training sequence. All arrays have shape (T,); a token is trained where `loss_mask_T` says so.

    Attributes:
        token_ids_T: int32, from the first token of the first prompt to the last trained one.
        loss_mask_T: bool; sampled tokens (those that end a turn among them) of the calls in `calls`.
        behaviour_logprobs_T: float32, of the sampler; NaN where not trained or not known.
        advantages_T: float64; 0 where not trained.
        policy_versions_T: int64; -1 where not trained or not known, as it is between the first and the last
            token of a call during which the weights changed.
        call_T: int32, index into `calls`; -1 where not trained.
        calls: call id and choice of what is trained in this row, in the order of the tokens.
    """

    rollout_id: str | None
    policy: str | None
    token_ids_T: NDArray[np.int32]
    loss_mask_T: NDArray[np.bool_]
    behaviour_logprobs_T: NDArray[np.float32]
    advantages_T: NDArray[np.float64]
    policy_versions_T: NDArray[np.int64]
    call_T: NDArray[np.int32]
    calls: tuple[tuple[str, int], ...]
    fidelity: Literal["engine"] = "engine"
    # How the losses of its tokens add up with those of the update's others.
    aggregation: Aggregation = "rollout_mean"

    @property
    def length(self) -> int:
        """T, the number of tokens."""
        return len(self.token_ids_T)

    @property
    def trained_tokens(self) -> int:
        """How many of them are trained."""
        return int(np.count_nonzero(self.loss_mask_T))


@dataclass(frozen=True, slots=True, eq=False)
class CallTokens:
    """What one call was, taken out of a row again. Arrays of P prompt and S sampled tokens."""

    call_id: str
    choice: int
    prompt_token_ids_P: NDArray[np.int32]
    response_token_ids_S: NDArray[np.int32]
    behaviour_logprobs_S: NDArray[np.float32]
    advantages_S: NDArray[np.float64]


def build_rows(advantages: Advantages) -> list[Row]:
    """The rows of what is in the loss: every sampled token of it in exactly one of them.

    Returns:
        Rows in the order of the episodes, and within one in the order of the calls. Only rows with a trained
        token; an episode without any has none.

    Raises:
        ConfigError: something in the loss has no token ids (`build_text_rows` takes it).
    """
    table = advantages.table
    refuse_fidelity("engine", table.transitions, advantages.in_loss_C.tolist())
    rows: list[Row] = []
    for episode in range(len(table.episodes)):
        calls = table.calls_of(episode)
        trained = advantages.in_loss_C[calls.start : calls.stop].tolist()
        if not any(trained):
            continue
        forest = build_chains(table.transitions[calls.start : calls.stop])
        values = advantages.advantage_C[calls.start : calls.stop]
        rows.extend(
            _build_row(forest, chain, trained, values, advantages.aggregation)
            for chain in forest.lay_out(trained)
        )
    return rows


def weight_rows(rows: Sequence[Row], *, constant_length: int | None = None) -> NDArray[np.float64]:
    """The weight of each trained token of a row in the loss of one update, shape (R,).

    With the aggregation "rollout_mean": (1 / R_i)(1 / N_i), one over the rollouts with a trained token in the update,
    and one over the trained tokens of the row's rollout in it. However a rollout is cut into rows, its tokens weigh
    1 / rollouts together, and those of the update 1.

    With "token_sum", which `dr_grpo` asks for: 1 / (rollouts * constant_length), the same for every token of the
    update, so that a long rollout weighs more than a short one.

    Args:
        rows: all rows of one update: whole rollouts, of one policy and one aggregation.
        constant_length: what takes the place of N_i in "token_sum", the same in all updates: as published the most
            tokens that may be sampled. It has no effect but on the size of the step. Not for "rollout_mean".

    Raises:
        ConfigError: rows of several policies or aggregations; a constant length is missing, of no use, or not
            positive.
    """
    policies = {row.policy for row in rows}
    if len(policies) > 1:
        names = ", ".join(sorted(str(policy) for policy in policies))
        raise ConfigError(
            f"an update is a step of one policy, and these rows are of {names}; plan_updates parts them"
        )
    _check_aggregation({row.aggregation for row in rows}, constant_length)
    tokens: dict[str | None, int] = defaultdict(int)
    for row in rows:
        tokens[row.rollout_id] += row.trained_tokens
    rollouts = sum(count > 0 for count in tokens.values())
    return np.array(
        [
            1.0 / (rollouts * (constant_length or tokens[row.rollout_id])) if tokens[row.rollout_id] else 0.0
            for row in rows
        ],
        dtype=np.float64,
    )


def _check_aggregation(aggregations: Collection[Aggregation], constant_length: int | None) -> None:
    if len(aggregations) > 1:
        raise ConfigError(
            f"an update has one loss, and these rows want theirs added up by {' and '.join(sorted(aggregations))}; "
            "give rows of one baseline"
        )
    if constant_length is not None and constant_length < 1:
        raise ConfigError(f"constant_length is {constant_length}; give the most tokens that may be sampled")
    if "token_sum" in aggregations and constant_length is None:
        raise ConfigError(
            "baseline dr_grpo asks for a loss over a constant length; give constant_length, such as the most tokens "
            "that may be sampled, or take the baseline mean, which has the same advantage"
        )
    if "rollout_mean" in aggregations and constant_length is not None:
        raise ConfigError(
            f"constant_length={constant_length} does nothing here: only the baseline dr_grpo asks for a loss over one"
        )


def split_row(row: Row) -> Iterator[CallTokens]:
    """The calls that are trained in a row, each with its own prompt, as if nothing had been merged."""
    for index, (call_id, choice) in enumerate(row.calls):
        sampled = np.flatnonzero(row.call_T == index)
        start, stop = int(sampled[0]), int(sampled[-1]) + 1
        yield CallTokens(
            call_id=call_id,
            choice=choice,
            prompt_token_ids_P=row.token_ids_T[:start],
            response_token_ids_S=row.token_ids_T[start:stop],
            behaviour_logprobs_S=row.behaviour_logprobs_T[start:stop],
            advantages_S=row.advantages_T[start:stop],
        )


def refuse_fidelity(fidelity: str, transitions: Sequence[Transition], in_loss: Sequence[bool]) -> None:
    """See that all that is in the loss is of one fidelity.

    Raises:
        ConfigError: it is not.
    """
    strange = [
        each
        for each, chosen in zip(transitions, in_loss, strict=True)
        if chosen and each.fidelity != fidelity
    ]
    if strange:
        remedy = (
            "select with require_engine=True, or learn from text with build_text_rows"
            if fidelity == "engine"
            else "learn from token ids with build_rows"
        )
        raise ConfigError(
            f"{len(strange)} of the calls in the loss ({strange[0].call_id!r} is the first) are of "
            f"{strange[0].fidelity} fidelity, not {fidelity}; {remedy}"
        )


def _build_row(
    forest: ChainForest,
    chain: Chain,
    trained: Sequence[bool],
    values: NDArray[np.float64],
    aggregation: Aggregation,
) -> Row:
    leaf = forest.transitions[chain.nodes[-1]]
    # Its prompt starts with all that came before it.
    token_ids = np.concatenate([_as_ids(leaf.prompt_token_ids), _as_ids(leaf.response_token_ids)])
    length = len(token_ids)
    loss_mask = np.zeros(length, dtype=np.bool_)
    logprobs = np.full(length, np.nan, dtype=np.float32)
    advantages = np.zeros(length, dtype=np.float64)
    versions = np.full(length, -1, dtype=np.int64)
    call = np.full(length, -1, dtype=np.int32)
    calls: list[tuple[str, int]] = []
    for at in chain.nodes[chain.first_own :]:
        if not trained[at]:
            continue
        each = forest.transitions[at]
        start = len(each.prompt_token_ids or ())
        stop = start + len(each.response_token_ids or ())
        loss_mask[start:stop] = True
        if each.response_logprobs is not None:
            logprobs[start:stop] = each.response_logprobs
        advantages[start:stop] = values[at]
        _fill_versions(versions[start:stop], each)
        call[start:stop] = len(calls)
        calls.append((each.call_id, each.choice))
    return Row(
        rollout_id=leaf.rollout_id,
        policy=leaf.policy,
        token_ids_T=token_ids,
        loss_mask_T=loss_mask,
        behaviour_logprobs_T=logprobs,
        advantages_T=advantages,
        policy_versions_T=versions,
        call_T=call,
        calls=tuple(calls),
        aggregation=aggregation,
    )


def _fill_versions(versions: NDArray[np.int64], transition: Transition) -> None:
    first, last = transition.policy_version, transition.policy_version_end
    if first is not None and first == last:
        versions[:] = first
        return
    if last is not None:
        versions[-1] = last
    if first is not None:
        versions[0] = first


def _as_ids(token_ids: Sequence[int] | None) -> NDArray[np.int32]:
    return np.asarray(token_ids if token_ids is not None else (), dtype=np.int32)
