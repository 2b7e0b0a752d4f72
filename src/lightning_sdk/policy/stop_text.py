"""Sampled tokens to text, one at a time: whole characters only, and no further than the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_sdk.policy.engine import Tokenizer

# A character takes at most four tokens of a byte-level vocabulary; what stays undecodable longer is broken.
_LONGEST_CHARACTER_TOKENS = 8
_REPLACEMENT = "\ufffd"


def held_back(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0


class TokenText:
    """Decodes a growing list of ids. The pieces joined are the text of all of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        # The text of ids before `_done` is out. Decoding starts at `_context`, a few ids earlier, because how
        # a token is written may depend on the one before it (a leading space).
        self._context = 0
        self._done = 0

    def feed(self, token_id: int) -> str:
        """Take one more id; the text that is certain now."""
        self._ids.append(token_id)
        piece = self._pending()
        if piece.endswith(_REPLACEMENT) and len(self._ids) - self._done < _LONGEST_CHARACTER_TOKENS:
            return ""
        if piece:
            self._context, self._done = self._done, len(self._ids)
        return piece

    def flush(self) -> str:
        """The rest, whole characters or not."""
        piece = self._pending()
        self._context = self._done = len(self._ids)
        return piece

    def _pending(self) -> str:
        known = self._tokenizer.decode(self._ids[self._context : self._done])
        return self._tokenizer.decode(self._ids[self._context :])[len(known) :]


class StoppableText:
    """`TokenText` that ends before the first stop string, also where it spans several tokens."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._text = TokenText(tokenizer)
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def feed(self, token_id: int) -> str:
        """Take one more id; the text that can be told now. Sets `stopped` once a stop string is complete."""
        return self._release(self._text.feed(token_id))

    def flush(self) -> str:
        """No more ids will come: what was held back."""
        if self.stopped:
            return ""
        piece = self._release(self._text.flush())
        rest, self._held = self._held, ""
        return piece + rest

    def _release(self, piece: str) -> str:
        text = self._held + piece
        found = min((at for at in (text.find(stop) for stop in self._stop) if at >= 0), default=-1)
        if found >= 0:
            self.stopped = True
            self._held = ""
            return text[:found]
        keep = len(text) - held_back(text, self._stop)
        self._held = text[keep:]
        return text[:keep]
