"""What the clients of a store counted: their faults, and what they left out."""

from __future__ import annotations

from typing import Final

from lightning_sdk._proto.read_pb2 import Stats
from lightning_sdk.cli import wording

# The store sums what every client counted under this prefix and the client's own name for it.
CLIENT_PREFIX: Final = "client."
# Of these names, those that count errors inside a client, each by its place.
ERROR_PREFIX: Final = "error."
# What clients left out, because no rollout was open where it was made, and what of.
OUTSIDE: Final = {"calls_outside_rollout": "model call", "tool_calls_outside_rollout": "tool call"}


def client_counters(stats: Stats) -> dict[str, int]:
    """Counters of all clients that are not zero, by the clients' names for them."""
    return {
        name.removeprefix(CLIENT_PREFIX): value
        for name, value in stats.counters.items()
        if name.startswith(CLIENT_PREFIX) and value
    }


def outside_rollouts(stats: Stats) -> list[str]:
    """What was made outside any rollout, and so was not recorded: a sentence, or none."""
    counted = client_counters(stats)
    parts = [wording.count(counted[name], what) for name, what in OUTSIDE.items() if counted.get(name)]
    if not parts:
        return []
    return [
        f"outside any rollout, and so not recorded: {' and '.join(parts)}; make them inside a function with "
        "@trace_agent, and in a thread or pool by contextvars.copy_context().run"
    ]
