"""What the clients of a store counted: their faults, and what they left out."""

from __future__ import annotations

from typing import Final

from lightning_sdk._proto.read_pb2 import Stats

# The store sums what every client counted under this prefix and the client's own name for it.
CLIENT_PREFIX: Final = "client."
# Of these names, those that count errors inside a client, each by its place.
ERROR_PREFIX: Final = "error."


def client_counters(stats: Stats) -> dict[str, int]:
    """Counters of all clients that are not zero, by the clients' names for them."""
    return {
        name.removeprefix(CLIENT_PREFIX): value
        for name, value in stats.counters.items()
        if name.startswith(CLIENT_PREFIX) and value
    }
