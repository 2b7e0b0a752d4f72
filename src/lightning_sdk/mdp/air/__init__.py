"""AIR, automatic intermediate rewarding: named rules turn what was observed anyway into reward components.

A tool that raised, arguments that are no JSON, an SQL error: a rule with a name and a weight finds each such thing
and gives the call that caused it a component `air.<name>`. It happens when episodes are read, so what is stored
stays as it was emitted, and other rules can be tried on the same records.
"""

from __future__ import annotations

from lightning_sdk.mdp.air.apply import AirReward, apply_air, find_air
from lightning_sdk.mdp.air.config import rules_from_config
from lightning_sdk.mdp.air.rules import (
    EmptyAnswer,
    Finding,
    Function,
    InvalidArguments,
    RefusedHandoff,
    RepeatedAction,
    Rule,
    SqlError,
    ToolError,
    UnparsableOutput,
)

__all__ = [
    "AirReward",
    "EmptyAnswer",
    "Finding",
    "Function",
    "InvalidArguments",
    "RefusedHandoff",
    "RepeatedAction",
    "Rule",
    "SqlError",
    "ToolError",
    "UnparsableOutput",
    "apply_air",
    "find_air",
    "rules_from_config",
]
