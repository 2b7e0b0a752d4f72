"""Records to episodes: pure functions, no I/O. Start at `assemble`."""

from __future__ import annotations

from lightning_sdk.mdp.episode import (
    DropReason,
    Episode,
    Fidelity,
    Group,
    RewardEvent,
    ScopeSpan,
    ToolEvent,
    Transition,
)

__all__ = [
    "DropReason",
    "Episode",
    "Fidelity",
    "Group",
    "RewardEvent",
    "ScopeSpan",
    "ToolEvent",
    "Transition",
]
