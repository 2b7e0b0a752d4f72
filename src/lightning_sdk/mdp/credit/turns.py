"""Turns: the decisions of a rollout in order, with the rewards that each one was followed by."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lightning_sdk.mdp.rewards import exact_sum
from lightning_sdk.mdp.table import CallTable


@dataclass(slots=True)
class Turn:
    """One call that is a decision; several rows where several of its choices are."""

    rows: list[int] = field(default_factory=list)
    # Rewards of each of the rows.
    rewards: list[float] = field(default_factory=list)
    # Rewards bound to calls between this turn and the next that are no decisions (another model's: a judge, say).
    # They are the environment's answer.
    followed_by: float = 0.0

    @property
    def reward(self) -> float:
        """All of it."""
        return exact_sum([*self.rewards, self.followed_by])

    def reward_of(self, at: int) -> float:
        """What one of the choices brought: its own reward, and what the turn was followed by."""
        return exact_sum([self.rewards[at], self.followed_by])


def turns_by_episode(table: CallTable) -> list[list[Turn]]:
    """The turns of each rollout that is in the baseline, in call order, over all of its agents; none of the others.

    What is bound before the first decision belongs to no turn: no decision of the policy brought it about.
    """
    turns: list[list[Turn]] = [[] for _ in table.episodes]
    last_call: tuple[int, int] | None = None
    known = np.nan_to_num(table.reward_C, nan=0.0).tolist()
    for row, episode in enumerate(table.episode_C.tolist()):
        if not table.in_baseline_E[episode]:
            continue
        own = turns[episode]
        if table.decision_C[row]:
            call = (episode, table.transitions[row].step)
            if call != last_call:
                own.append(Turn())
            last_call = call
            own[-1].rows.append(row)
            own[-1].rewards.append(known[row])
        elif own:
            own[-1].followed_by = exact_sum([own[-1].followed_by, known[row]])
    return turns
