"""Some rollouts of a round as text, to be read by people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from lightning_sdk.mdp import Episode, Group, Transition


def write_samples(directory: Path, round_: int, groups: Sequence[Group], most: int) -> Path | None:
    """Write up to `most` rollouts of a round, of different tasks as far as there are, best and worst in turn.

    Returns:
        The file; None where there is nothing to write.
    """
    chosen = list(_chosen(groups, most))
    if not chosen:
        return None
    directory.mkdir(exist_ok=True)
    target = directory / f"round-{round_:06d}.txt"
    target.write_text("\n\n".join(as_text(episode) for episode in chosen), errors="backslashreplace")
    return target


def _chosen(groups: Sequence[Group], most: int) -> Iterator[Episode]:
    ranked = [
        sorted(group.episodes, key=lambda episode: -(episode.return_ if episode.return_ is not None else 0.0))
        for group in groups
        if group.episodes
    ]
    for place in range(most):
        if not ranked:
            return
        episodes = ranked.pop(0)
        yield episodes.pop(0 if place % 2 == 0 else -1)
        if episodes:
            ranked.append(episodes)


def as_text(episode: Episode) -> str:
    """One rollout: what was asked, answered and rewarded. A prompt is told only as far as it is new."""
    reward = "no reward" if episode.return_ is None else f"reward {episode.return_:g}"
    lines = [f"=== rollout {episode.rollout_id}  task {episode.task_id}  {episode.outcome}  {reward}"]
    if episode.error:
        lines.append(f"    error: {episode.error}")
    told: list[str] = []
    for transition in episode.transitions:
        messages = [_message(message) for message in transition.observation.get("messages") or ()]
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(told, messages, strict=False)))
        lines += [f"  {message}" for message in messages[shared:]]
        said = _message(transition.action or {})
        lines.append(f"  > {said}    [{_facts(transition)}]")
        told = [*messages, said]
    return "\n".join(lines) + "\n"


def _message(message: Mapping[str, Any]) -> str:
    inner = message.get("message", message)
    if not isinstance(inner, Mapping):
        return str(inner)
    parts = [inner.get("content") or ""]
    for call in inner.get("tool_calls") or ():
        function = call.get("function", {}) if isinstance(call, Mapping) else {}
        parts.append(f"{function.get('name')}({function.get('arguments')})")
    said = " ".join(part if isinstance(part, str) else json.dumps(part) for part in parts if part)
    return f"{inner.get('role', 'assistant')}: {said}"


def _facts(transition: Transition) -> str:
    facts = [transition.agent or "", f"{transition.policy or transition.model} v{transition.policy_version}"]
    if transition.reward:
        facts.append(f"reward {transition.reward:+g}")
    if transition.drop_reason:
        facts.append(transition.drop_reason)
    return ", ".join(fact for fact in facts if fact)
