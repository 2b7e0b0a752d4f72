"""What the client imports no earlier than something is recorded, imported in one piece.

A fork in the middle of an import by another thread leaves the child a module that nobody will ever finish, and
an import that waits for it for ever. So all of it is imported here, which a fork waits for; where functions of the
client import one of these modules later on, it is there.
"""

from __future__ import annotations

import importlib
from typing import Final

from lightning_sdk.client.forks import undivided_import

_MODULES: Final = (
    "hashlib",
    "json",
    "importlib.metadata",
    "lightning_sdk.client.execution",
    "lightning_sdk.client.generators",
    "lightning_sdk.client.integrations",
    "lightning_sdk.client.journal",
    "lightning_sdk.client.producer",
    "lightning_sdk.client.propagation.patches",
    "lightning_sdk.client.recorder",
    "lightning_sdk.plugins",
)
_loaded = False


def load_client() -> None:
    """Import all that the client needs to record; cheap where that has been done."""
    global _loaded
    if _loaded:
        return
    with undivided_import():
        for name in _MODULES:
            importlib.import_module(name)
    _loaded = True
