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
        emitted = _Emitted(episode)
        for row in rows:
            value_C[row] = emitted.around(table.transitions[row].invocation_id)
    return value_C


def scope_sums(table: CallTable) -> list[list[tuple[str | None, float]]]:
    """What `broadcast_scope` adds up, for each row: agent and sum of each scope that counts, the innermost first.

    The rollout, which comes last, has None for its agent. Scopes in which nothing was emitted are left out.
    """
    sums: list[list[tuple[str | None, float]]] = [[] for _ in table.transitions]
    for at, episode in enumerate(table.episodes):
        emitted = _Emitted(episode)
        agents = {scope.scope_id: scope.agent or scope.scope_id for scope in episode.scopes}
        for row in table.calls_of(at):
            if episode.return_ is None and not np.isnan(table.return_E[at]):
                sums[row].append((None, float(table.return_E[at])))
            for scope in emitted.path(table.transitions[row].invocation_id):
                values = emitted.by_scope.get(scope)
                if values:
                    sums[row].append((agents.get(scope, scope) if scope else None, exact_sum(values)))
    return sums


class _Emitted:
    """The rewards of an episode by the scope in which they were emitted; "" is the rollout."""

    def __init__(self, episode: Episode) -> None:
        self._parents = {scope.scope_id: scope.parent_scope_id for scope in episode.scopes}
        self.by_scope: dict[str, list[float]] = defaultdict(list)
        for event in episode.rewards:
            if not event.replaced:
                self.by_scope[event.scope_id or ""].append(event.value)
        self._known: dict[str | None, float] = {}

    def path(self, scope_id: str | None) -> list[str]:
        """A scope, those around it, and the rollout."""
        path: dict[str, None] = {}
        while scope_id and scope_id not in path:
            path[scope_id] = None
            scope_id = self._parents.get(scope_id)
        return [*path, ""]

    def around(self, scope_id: str | None) -> float:
        """The sum over a scope's path."""
        if scope_id not in self._known:
            path = self.path(scope_id)
            self._known[scope_id] = exact_sum(
                value for scope in path for value in self.by_scope.get(scope, ())
            )
        return self._known[scope_id]
