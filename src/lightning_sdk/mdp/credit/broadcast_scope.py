"""Rewards of an agent's own: those of its invocation and of the ones around it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.mdp.episode import Episode
from lightning_sdk.mdp.rewards import exact_sum
from lightning_sdk.mdp.table import CallTable


def broadcast_scope(table: CallTable) -> NDArray[np.float64]:
    """Value = sum of the rewards emitted in the call's scope and in those that enclose it, the rollout the outermost.

    So an agent invocation gets the team's rewards and its own, never those of its siblings or of what it called. A
    reward with `call=` belongs to that call's scope, one emitted after the outermost scope ended or by rollout id to
    the rollout.

    Shapes: (C,). NaN where the rollout has no reward. A rollout with one scope: as `broadcast`.
    Source: none; LightningRL (arXiv:2508.03680) over invocations in the place of the rollout.
    """
    value_C = np.full(table.calls, np.nan)
    for at, episode in enumerate(table.episodes):
        if np.isnan(table.return_E[at]):
            continue
        rows = table.calls_of(at)
        if episode.return_ is None:  # a configured reward of failure, for the whole rollout
            value_C[rows.start : rows.stop] = table.return_E[at]
            continue
        credit_of = _ScopeCredit(episode)
        for row in rows:
            value_C[row] = credit_of(table.transitions[row].invocation_id)
    return value_C


class _ScopeCredit:
    def __init__(self, episode: Episode) -> None:
        self._parents = {scope.scope_id: scope.parent_scope_id for scope in episode.scopes}
        self._emitted: dict[str, list[float]] = defaultdict(list)
        for event in episode.rewards:
            if not event.replaced:
                self._emitted[event.scope_id or ""].append(event.value)
        self._known: dict[str | None, float] = {}

    def __call__(self, scope_id: str | None) -> float:
        if scope_id not in self._known:
            values = list(self._emitted[""])
            enclosing, inner = set[str](), scope_id
            while inner and inner not in enclosing:
                enclosing.add(inner)
                values.extend(self._emitted[inner])
                inner = self._parents.get(inner)
            self._known[scope_id] = exact_sum(values)
        return self._known[scope_id]
