"""What of a choice's text may be streamed: what cannot become part of a tool call any more."""

from __future__ import annotations

from lightning_sdk.policy.stop_text import held_back
from lightning_sdk.policy.tool_prompt import CALL_OPEN, ParsedText


class VisibleText:
    """The text of one choice while it grows."""

    def __init__(self, uses_tools: bool) -> None:
        self._uses_tools = uses_tools
        self._held = ""
        self._streamed = 0

    def feed(self, text: str) -> str:
        """More text; what of it can be told now."""
        if not self._uses_tools:
            self._streamed += len(text)
            return text
        self._held += text
        call = self._held.find(CALL_OPEN)
        keep = call if call >= 0 else len(self._held) - held_back(self._held, (CALL_OPEN,))
        ready, self._held = self._held[:keep], self._held[keep:]
        self._streamed += len(ready)
        return ready

    def rest(self, parsed: ParsedText) -> str:
        """The text is whole and taken apart; what of it was not told yet."""
        return parsed.content[self._streamed :]
