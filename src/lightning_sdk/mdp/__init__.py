"""Records to episodes: pure functions, no I/O. Start at `assemble`.

records ─ joining ─ order ─ repeats ─┬─ calls (apis, token_ids) ─ choices (prefixes) ─┐
                                     ├─ rewards ─ binding ────────────────────────────┼─ transitions ─ native
                                     └─ events (scopes, tools) ───────────────────────┘

`frame` has the rules that the store's summaries follow too.

Learning from episodes has modules of its own, which this one does not import, since they need numpy (in the
`[server]` extra):

episodes ─ table (select) ─ credit ─ baseline ─ advantages ─┬─ chains ─ sequences ─ packing
                                                                  └─ explain
"""

from __future__ import annotations

from lightning_sdk.mdp.assemble import assemble, group_episodes
from lightning_sdk.mdp.calls import CallView, ChoiceView, decode_call
from lightning_sdk.mdp.episode import (
    TEXT_ONLY,
    DropReason,
    Episode,
    Fidelity,
    Group,
    RewardEvent,
    RolloutOutcome,
    ScopeSpan,
    ToolEvent,
    Transition,
)
from lightning_sdk.mdp.events import decode_scopes, decode_tool
from lightning_sdk.mdp.native import NATIVE_SCHEMA_VERSION, native_record
from lightning_sdk.mdp.rewards import decode_rewards

__all__ = [
    "NATIVE_SCHEMA_VERSION",
    "TEXT_ONLY",
    "CallView",
    "ChoiceView",
    "DropReason",
    "Episode",
    "Fidelity",
    "Group",
    "RewardEvent",
    "RolloutOutcome",
    "ScopeSpan",
    "ToolEvent",
    "Transition",
    "assemble",
    "decode_call",
    "decode_rewards",
    "decode_scopes",
    "decode_tool",
    "group_episodes",
    "native_record",
]
