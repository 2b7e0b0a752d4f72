"""What `turn_gae` needs from the value heads: V before each decision, and after the last one of what was cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_backends.torch_rl.layout import Ids
from lightning_backends.torch_rl.policy import TrainedPolicy
from lightning_backends.torch_rl.value import estimate
from lightning_sdk.mdp import Group, Transition
from lightning_sdk.mdp.select import Selection
from lightning_sdk.mdp.table import CallTable, build_table


@dataclass(frozen=True, slots=True)
class CriticValues:
    """V by call id, and after the last response by rollout id; the groups that they are known for."""

    values: Mapping[str, float]
    final_values: Mapping[str, float]
    groups: tuple[Group, ...]
    # Rollouts left out, since the tokens of a decision in them are not known.
    unknown_rollouts: int


def evaluate(
    groups: Sequence[Group], policies: Mapping[str, TrainedPolicy], selection: Selection
) -> CriticValues:
    """Let each policy's head value what that policy decided."""
    table = build_table(groups, selection=selection)
    unknown = _without_tokens(table)
    kept = tuple(
        replace(group, episodes=[each for each in group.episodes if each.rollout_id not in unknown])
        for group in groups
    )
    asked: dict[str, list[tuple[str, str, Ids]]] = defaultdict(list)
    last: dict[int, Transition] = {}
    for row in np.flatnonzero(table.decision_C):
        transition = table.transitions[row]
        if transition.rollout_id in unknown:
            continue
        prompt = np.asarray(transition.prompt_token_ids, dtype=np.int32)
        asked[transition.policy or ""].append(("call", transition.call_id, prompt))
        last[int(table.episode_C[row])] = transition
    for episode, transition in last.items():
        if table.truncated_E[episode]:
            ids = [*(transition.prompt_token_ids or ()), *(transition.response_token_ids or ())]
            rollout = table.episodes[episode].rollout_id or ""
            asked[transition.policy or ""].append(("rollout", rollout, np.asarray(ids, dtype=np.int32)))
    found: dict[str, dict[str, float]] = {"call": {}, "rollout": {}}
    for name, rows in asked.items():
        policy = policies[name]
        assert policy.value_head is not None
        values = estimate(
            policy.model,
            policy.value_head,
            [ids for _, _, ids in rows],
            budget=policy.budget,
            share_prefixes=policy.options.share_prefixes,
        )
        for (kind, key, _), value in zip(rows, values.tolist(), strict=True):
            found[kind][key] = value
    return CriticValues(found["call"], found["rollout"], kept, len(unknown))


def _without_tokens(table: CallTable) -> set[str | None]:
    return {
        table.transitions[row].rollout_id
        for row in np.flatnonzero(table.decision_C)
        if not table.transitions[row].prompt_token_ids
    }
