"""Records the calls of the OpenAI SDK: request and response as they were on the wire; and routes them.

Where it is patched, and how, is in `_stainless`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from lightning_integrations._stainless import Sdk, StainlessPatches

if TYPE_CHECKING:
    from lightning_sdk.plugins import Recorder, Undo

_VERSIONS: Final = ">=2.20,<4"

_APIS: Final = {
    "chat/completions": "chat.completions",
    "completions": "completions",
    "responses": "responses",
    "embeddings": "embeddings",
}


class OpenAIIntegration:
    """Chat completions, responses, completions and embeddings of `openai`, by any client class, Azure's included."""

    name: ClassVar[str] = "openai"
    target: ClassVar[str] = "openai"
    distribution: ClassVar[str] = "openai"
    versions: ClassVar[str] = _VERSIONS

    def install(self, recorder: Recorder) -> Undo:
        """Patch the SDK's client classes. Installing again adds no second record of a call.

        Raises:
            PluginError: this version of openai does not have what the patches need; nothing was changed.
        """
        return _patches.install(recorder)


def _find_sockets() -> Sequence[tuple[Any, str]]:
    client = importlib.import_module("openai._base_client").BaseClient
    if "_websocket_query_params" in vars(client):
        return ((client, "_websocket_query_params"),)
    # Older versions have nothing in common; their modules are imported for this.
    return [
        (manager, name)
        for path in (
            "realtime.realtime",
            "beta.realtime.realtime",
            "responses.responses",
            "beta.responses.responses",
        )
        for manager in _managers(f"openai.resources.{path}")
        for name in ("__enter__", "__aenter__", "enter")
        if name in vars(manager)
    ]


def _managers(path: str) -> list[type]:
    """The classes of a module that open connections."""
    try:
        module = importlib.import_module(path)
    except ImportError:
        return []
    return [
        value
        for name, value in vars(module).items()
        if name.endswith("ConnectionManager") and isinstance(value, type) and value.__module__ == path
    ]


_patches = StainlessPatches(
    Sdk(
        name="openai",
        versions=_VERSIONS,
        apis=_APIS,
        routed=frozenset({"chat/completions", "completions", "responses"}),
        # A whole URL, and what Azure puts between.
        before_path=r"(?:https?://.+?)?(?:/openai)?(?:/deployments/[^/]+)?",
        find_sockets=_find_sockets,
    )
)
