"""What the credit of a call is the sum of, so that it can be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lightning_sdk.mdp.credit.broadcast_scope import scope_sums
from lightning_sdk.mdp.credit.gigpo import gigpo_parts
from lightning_sdk.mdp.credit.hgpo import hgpo_levels
from lightning_sdk.mdp.credit.turns import Turn, turns_by_episode
from lightning_sdk.mdp.table import CallTable


@dataclass(frozen=True, slots=True)
class CreditTerm:
    """One part: `factor * value`."""

    what: str
    value: float
    factor: float = 1.0


# The terms of each row; none where a row has no credit.
Terms = list[tuple[CreditTerm, ...]]


def credit_terms(table: CallTable, credit: str, params: Mapping[str, Any]) -> Terms:
    """The terms of each row, shape (C,): their sum is its credit, but for rounding.

    Args:
        table: of C rows.
        credit: its name. One that is given as a whole (`broadcast`, values of the user's) has no terms.
        params: of it, defaults included.
    """
    maker = _MAKERS.get(credit)
    return [()] * table.calls if maker is None else maker(table, **params)


def _per_call(table: CallTable) -> Terms:
    terms: Terms = [()] * table.calls
    for turns in turns_by_episode(table):
        for turn in turns:
            for at, row in enumerate(turn.rows):
                terms[row] = _own(turn, at)
    return terms


def _discounted(table: CallTable, *, gamma: float) -> Terms:
    terms: Terms = [()] * table.calls
    for turns in turns_by_episode(table):
        later: tuple[CreditTerm, ...] = ()
        for turn in reversed(turns):
            for at, row in enumerate(turn.rows):
                terms[row] = _own(turn, at) + later
            total = turn.reward + sum(each.factor * each.value for each in later)
            later = (CreditTerm("what the next call's turn is worth", total, gamma),)
    return terms


def _own(turn: Turn, at: int) -> tuple[CreditTerm, ...]:
    own = CreditTerm("its own reward", turn.rewards[at])
    if not turn.followed_by:
        return (own,)
    return (own, CreditTerm("what is bound to calls after it that are no decisions", turn.followed_by))


def _broadcast_scope(table: CallTable) -> Terms:
    return [
        tuple(CreditTerm(f"emitted in {scope or 'the rollout'}", value) for scope, value in sums)
        for sums in scope_sums(table)
    ]


def _gigpo(table: CallTable, **params: Any) -> Terms:
    episode_C, step_C = gigpo_parts(table, **{key: params[key] for key in params if key != "weight"})
    return [
        (
            CreditTerm("of the rollout against its group", episode),
            CreditTerm("of the call against its state", step, params["weight"]),
        )
        if episode == episode
        else ()
        for episode, step in zip(episode_C.tolist(), step_C.tolist(), strict=True)
    ]


def _hgpo(table: CallTable, **params: Any) -> Terms:
    levels = hgpo_levels(table, **params)
    total_C = sum(weight * (relative_C == relative_C) for weight, relative_C in levels)
    terms: Terms = []
    for row in range(table.calls):
        known = [
            (k, weight, float(relative_C[row]))
            for k, (weight, relative_C) in enumerate(levels)
            if relative_C[row] == relative_C[row]
        ]
        terms.append(
            tuple(
                CreditTerm(
                    f"against its state after {k} alike" if k else "against its state",
                    value,
                    float(weight / total_C[row]),
                )
                for k, weight, value in known
            )
        )
    return terms


_MAKERS: Final[Mapping[str, Callable[..., Terms]]] = {
    "per_call": _per_call,
    "discounted": _discounted,
    "broadcast_scope": _broadcast_scope,
    "gigpo": _gigpo,
    "hgpo": _hgpo,
}
