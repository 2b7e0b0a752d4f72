"""Records the messages of the Anthropic SDK: request and response as they were on the wire; and routes them.

Where it is patched, and how, is in `_stainless`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from lightning_integrations._stainless import Sdk, StainlessPatches

if TYPE_CHECKING:
    from lightning_sdk.plugins import Recorder, Undo

_VERSIONS: Final = ">=0.100,<3"


class AnthropicIntegration:
    """Messages of `anthropic`."""

    name: ClassVar[str] = "anthropic"
    target: ClassVar[str] = "anthropic"
    distribution: ClassVar[str] = "anthropic"
    versions: ClassVar[str] = _VERSIONS

    def install(self, recorder: Recorder) -> Undo:
        """Patch the SDK's client classes. Installing again adds no second record of a call.

        Raises:
            PluginError: this version of anthropic does not have what the patches need; nothing was changed.
        """
        return _patches.install(recorder)


_patches = StainlessPatches(
    Sdk(
        name="anthropic",
        versions=_VERSIONS,
        apis={"messages": "messages"},
        routed=frozenset({"messages"}),
        # A whole URL, and the version, which the endpoint's base URL has already.
        before_path=r"(?:https?://.+?)?/v1",
    )
)
