"""Make an agent trainable: record its model calls, rewards and tools as learning data.

import lightning_sdk as ls

@ls.trace_agent
def solve(task): ...            # existing code, unchanged

ls.emit_reward(score)           # wherever the score is known
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lightning_sdk.client.decorators import trace_agent, trace_tool
from lightning_sdk.client.propagation.http import extract, inject
from lightning_sdk.client.rewards import annotate, emit_reward, last_call
from lightning_sdk.client.rollout import current_rollout, rollout, truncate
from lightning_sdk.client.runtime import flush, init, shutdown

if TYPE_CHECKING:
    from lightning_sdk import testing as testing
    from lightning_sdk.training import train as train

__all__ = [
    "annotate",
    "current_rollout",
    "emit_reward",
    "extract",
    "flush",
    "init",
    "inject",
    "last_call",
    "rollout",
    "shutdown",
    "trace_agent",
    "trace_tool",
    "truncate",
]

if "LIGHTNING_CONTEXT" in os.environ:
    # We are a program that was started in a rollout.
    from lightning_sdk.client.propagation.programs import adopt_environment

    adopt_environment()


def __getattr__(name: str) -> Any:
    # `lightning_sdk.testing` works after `import lightning_sdk`, which does not import it.
    if name == "testing":
        import importlib

        return importlib.import_module("lightning_sdk.testing")
    # Needs what the client does not: the extra [server].
    if name == "train":
        from lightning_sdk.training import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
