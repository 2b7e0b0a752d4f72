"""The call table: what credits, baselines and sequences read. One row a transition, columns in numpy.

Axes: G groups, E episodes (rollouts), C transitions. An array carries its axis as a suffix: `reward_C`.
Statistics count rollouts, never rows (see `baseline`), and who counts is decided here, once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.episode import Episode, Group, Transition
from lightning_sdk.mdp.select import POLICY_TOO_OLD, Selection, select

# Why a rollout counts in neither baseline nor loss.
NO_REWARD: Final = "no_reward"  # none was emitted, and `failure_reward` does not apply
RUNNING: Final = "running"  # it has not ended: its return is not known yet
LOST: Final = "lost"  # a part of it never arrived, and with it perhaps rewards
NO_DECISION: Final = "no_decision"  # it counts, but has no decision: nothing to compare or train
# Why a rollout counts in the baseline only.
MASKED_TRUNCATED: Final = "masked_truncated"

# Calls that gave the agent no answer that it went on from: no choice of the policy, so no part of a mean.
_NO_DECISION: Final = frozenset({"error", "cancelled", "unreadable", "superseded_retry", "unused_choice"})


@dataclass(frozen=True, slots=True)
class CallTable:
    """Columns over the C transitions of some groups, in the order group, episode, step, choice.

    What is not known is NaN. All arrays are read-only.
    """

    # As given.
    groups: tuple[Group, ...]
    # E of them, by group.
    episodes: tuple[Episode, ...]
    transitions: tuple[Transition, ...]
    # int64: index into `episodes` of each transition; index into `groups` of each episode; into `agents`.
    episode_C: NDArray[np.int64]
    group_E: NDArray[np.int64]
    agent_C: NDArray[np.int64]
    # Sorted; "" where no agent is known.
    agents: tuple[str, ...]
    # Rewards bound to the transition (with `failure_reward` where it applies, at the last decision).
    reward_C: NDArray[np.float64]
    # Sum of the rollout's rewards, those that found no call among them; or `failure_reward`.
    return_E: NDArray[np.float64]
    in_baseline_E: NDArray[np.bool_]
    in_loss_E: NDArray[np.bool_]
    # Why an episode is not in the loss; None where it is.
    reason_E: tuple[str | None, ...]
    # Something cut the rollout: it did not come to an end of its own.
    truncated_E: NDArray[np.bool_]
    # The transition is a decision of a trained policy that the agent went on from, whether or not it can be
    # trained on: its credit is part of its rollout's entry in a baseline. What cannot be a decision (an error,
    # an unused choice, another model's call) belongs to the environment.
    decision_C: NDArray[np.bool_]
    # What `selection` takes, and why it does not take the others. A subset of the decisions.
    selected_C: NDArray[np.bool_]
    reason_C: tuple[str | None, ...]

    @property
    def without_decision_E(self) -> NDArray[np.bool_]:
        """Rollouts that would be in the baseline, but have no decision whose credit could be their entry."""
        decided_E = np.zeros(len(self.episodes), dtype=np.bool_)
        decided_E[self.episode_C[self.decision_C]] = True
        return self.in_baseline_E & ~decided_E

    @property
    def calls(self) -> int:
        """C, the number of transitions."""
        return len(self.transitions)

    @property
    def group_C(self) -> NDArray[np.int64]:
        """The index into `groups` of each transition."""
        return self.group_E[self.episode_C]

    def calls_of(self, episode: int) -> range:
        """The rows of one episode, in call order."""
        start, stop = np.searchsorted(self.episode_C, [episode, episode + 1])
        return range(int(start), int(stop))

    def name_of(self, row: int) -> str:
        """How a message names a row."""
        transition = self.transitions[row]
        return (
            f"choice {transition.choice} of call {transition.call_id!r} of rollout {transition.rollout_id!r}"
        )


def build_table(
    groups: Iterable[Group],
    *,
    selection: Selection | None = None,
    failure_reward: float | None = None,
    mask_truncated: bool = False,
    require_reward: bool = True,
) -> CallTable:
    """Lay groups out as columns, and decide who counts.

    - A rollout with a reward, however it ended, is in the baseline and the loss. Without one it is in neither:
      a missing reward is not a zero reward.
    - `failure_reward` is the return of a failed or truncated rollout to which no reward was emitted.
    - Running and lost rollouts are in neither, whatever they got so far.
    - `mask_truncated` takes truncated rollouts out of the loss; they stay in the baseline.

    Returns are those of the whole rollout, computed before any call is selected or dropped.

    Args:
        groups: each group once, each rollout once. Pass rollouts that are complete.
        selection: which transitions are trained; by default every one that can be.
        failure_reward: finite.
        mask_truncated: as above.
        require_reward: False where the credit comes from elsewhere (`precomputed`).

    Raises:
        ConfigError: a group or rollout comes twice; `failure_reward` is not finite.
    """
    if failure_reward is not None and not (
        isinstance(failure_reward, int | float) and math.isfinite(failure_reward)
    ):
        raise ConfigError(f"failure_reward is {failure_reward!r}; give a finite number, or None")
    groups = tuple(groups)
    episodes = tuple(episode for group in groups for episode in group.episodes)
    _refuse_twice("group", [group.group_id for group in groups], "merge it with group_episodes")
    known = [episode.rollout_id for episode in episodes if episode.rollout_id is not None]
    _refuse_twice("rollout", known, "keep one of them")
    transitions = tuple(transition for episode in episodes for transition in episode.transitions)
    episode_C = np.repeat(np.arange(len(episodes)), [len(episode.transitions) for episode in episodes])
    group_E = np.repeat(np.arange(len(groups)), [len(group.episodes) for group in groups])

    selected = select(transitions, selection or Selection(), group_E[episode_C].tolist())
    decision_C = _booleans(
        foreign is None and transition.drop_reason not in _NO_DECISION
        for foreign, transition in zip(selected.foreign, transitions, strict=True)
    )
    truncated_E = _booleans(_is_truncated(episode) for episode in episodes)
    reward_C = _numbers(transition.reward for transition in transitions)
    return_E = _numbers(episode.return_ for episode in episodes)
    if failure_reward is not None:
        failed_E = np.isnan(return_E) & _booleans(map(_is_failure, episodes, truncated_E.tolist()))
        return_E[failed_E] = failure_reward
        _put_at_last_decision(reward_C, failed_E, failure_reward, episode_C, decision_C)
    has_value_E = np.isfinite(return_E) | (not require_reward)
    outside = [_why_out(*each) for each in zip(episodes, has_value_E.tolist(), strict=True)]
    masked = [MASKED_TRUNCATED if mask_truncated and cut else None for cut in truncated_E.tolist()]
    reasons = tuple(out or mask for out, mask in zip(outside, masked, strict=True))
    agents = tuple(sorted({transition.agent or "" for transition in transitions}))
    index = {agent: at for at, agent in enumerate(agents)}
    table = CallTable(
        groups=groups,
        episodes=episodes,
        transitions=transitions,
        episode_C=episode_C.astype(np.int64),
        group_E=group_E.astype(np.int64),
        agent_C=np.array([index[transition.agent or ""] for transition in transitions], dtype=np.int64),
        agents=agents,
        reward_C=reward_C,
        return_E=return_E,
        in_baseline_E=_booleans(reason is None for reason in outside),
        in_loss_E=_booleans(reason is None for reason in reasons),
        reason_E=reasons,
        truncated_E=truncated_E,
        decision_C=decision_C,
        selected_C=_booleans(reason is None for reason in selected.reasons),
        reason_C=selected.reasons,
    )
    _freeze(table)
    return table


def count_rollouts(table: CallTable) -> dict[str, int]:
    """Who counts and who does not, in numbers.

    `groups`, `rollouts`, `calls` (transitions), `incomplete_rollouts`; `rollouts_<reason>` for each reason why a
    rollout is not in the loss, and `rollouts_no_decision` for those that count but have no decision.
    Rollouts dropped for their age are told by length: `policy_too_old_with_4_to_7_calls`.
    """
    counts = Counter(
        groups=len(table.groups),
        rollouts=len(table.episodes),
        calls=table.calls,
        incomplete_rollouts=sum(not episode.complete for episode in table.episodes),
    )
    counts.update(f"rollouts_{reason}" for reason in table.reason_E if reason is not None)
    if table.without_decision_E.any():
        counts[f"rollouts_{NO_DECISION}"] = int(table.without_decision_E.sum())
    aged = {
        episode
        for episode, reason in zip(table.episode_C.tolist(), table.reason_C, strict=True)
        if reason == POLICY_TOO_OLD
    }
    for episode in aged:
        low = 1 << (len(table.calls_of(episode)).bit_length() - 1)
        counts[f"policy_too_old_with_{low}_to_{2 * low - 1}_calls"] += 1
    return dict(counts)


def _is_truncated(episode: Episode) -> bool:
    return episode.outcome == "truncated" or any(transition.truncated for transition in episode.transitions)


def _is_failure(episode: Episode, truncated: bool) -> bool:
    """It ended without success, in a way that the agent answers for; one that was cancelled did not fail."""
    return episode.outcome in ("failed", "truncated") or (truncated and episode.outcome == "succeeded")


def _why_out(episode: Episode, has_value: bool) -> str | None:
    if episode.outcome == "running":
        return RUNNING
    if episode.outcome == "lost":
        return LOST
    return None if has_value else NO_REWARD


def _put_at_last_decision(
    reward_C: NDArray[np.float64],
    given_E: NDArray[np.bool_],
    value: float,
    episode_C: NDArray[np.int64],
    decision_C: NDArray[np.bool_],
) -> None:
    """Once a rollout has a reward its unrewarded steps are 0."""
    last: Mapping[int, int] = {int(episode_C[row]): int(row) for row in np.flatnonzero(decision_C)}
    reward_C[given_E[episode_C]] = 0.0
    for episode in np.flatnonzero(given_E):
        if int(episode) in last:
            reward_C[last[int(episode)]] = value


def _numbers(values: Iterable[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _booleans(values: Iterable[bool]) -> NDArray[np.bool_]:
    return np.array(list(values), dtype=np.bool_)


def _refuse_twice(kind: str, ids: Sequence[str], remedy: str) -> None:
    twice = [id_ for id_, times in Counter(ids).items() if times > 1]
    if twice:
        raise ConfigError(f"{kind} {twice[0]!r} was given {ids.count(twice[0])} times; {remedy}")


def _freeze(table: CallTable) -> None:
    for name in table.__slots__:
        column = getattr(table, name)
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
