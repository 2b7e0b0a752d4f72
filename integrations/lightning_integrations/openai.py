"""Records the calls of the OpenAI SDK: request and response as they were on the wire; and routes them.

Where it is patched, and how, is in `_stainless`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

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


_patches = StainlessPatches(
    Sdk(
        name="openai",
        versions=_VERSIONS,
        apis=_APIS,
        routed=frozenset({"chat/completions", "completions", "responses"}),
        # A whole URL, and what Azure puts between.
        before_path=r"(?:https?://.+?)?(?:/openai)?(?:/deployments/[^/]+)?",
    )
)
