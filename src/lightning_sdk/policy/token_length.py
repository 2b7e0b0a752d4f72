"""How much text one token can stand for, read off a tokenizer's definition.

A prompt of megabytes cannot fit any context, but tokenising it takes half a minute to say so. Where no token
is longer than L characters, a text of N characters has N / L tokens or more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

# A character that normalisation to NFC composes comes from four characters at the most.
_NFC_SHRINKS = 4


@dataclass(frozen=True)
class TokenBound:
    """The fewest tokens that a text can become."""

    # The most characters that one token stands for; None where that has no bound, or none is known.
    most_characters: int | None = None
    # Characters that the vocabulary has nothing for, and that become no token at all.
    lost: str = ""

    def least_tokens(self, text: str) -> int:
        """As many as if every token were as long as the longest."""
        if self.most_characters is None:
            return 0
        told = len(text) - sum(map(text.count, self.lost))
        return -(-told // self.most_characters)


def token_bound(tokenizer: Any) -> TokenBound:
    """What a tokenizer's definition says of that.

    Known are byte-level vocabularies, and others that fall back to bytes, with normalisers that drop nothing.
    Elsewhere one token may stand for any run of unknown characters, or a normaliser may remove text.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return TokenBound()
    definition = json.loads(backend.to_str())
    model, added = definition["model"], definition.get("added_tokens") or []
    if model["type"] != "BPE" or definition.get("truncation") is not None:
        return TokenBound()
    steps = list(_steps(definition.get("pre_tokenizer"), "pretokenizers"))
    takes_space = any(token["lstrip"] or token["rstrip"] for token in added)
    if takes_space or any(_drops(step) for step in steps):
        return TokenBound()
    shrinks = 1
    for step in _steps(definition.get("normalizer"), "normalizers"):
        if step["type"] == "NFC":
            shrinks = _NFC_SHRINKS
        elif not _keeps_length(step):
            return TokenBound()
    lost = _lost_characters(model, byte_level=any(step["type"] == "ByteLevel" for step in steps))
    if lost is None:
        return TokenBound()
    # In a byte-level vocabulary one character of a token is one byte, which is no more than a character.
    longest = max(map(len, [*model["vocab"], *(token["content"] for token in added)]))
    return TokenBound(shrinks * longest, lost)


def _lost_characters(model: Mapping[str, Any], *, byte_level: bool) -> str | None:
    """The characters that become no token; None where they cannot be told one by one."""
    vocabulary = model["vocab"]
    if not byte_level:
        bytes_ = (f"<0x{byte:02X}>" for byte in range(256))
        return "" if model.get("byte_fallback") and all(map(vocabulary.__contains__, bytes_)) else None
    write = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    # Every other character has one of these bytes, the second of these 64 characters, or more.
    continued = (write(chr(code))[0][0][-1] for code in range(0x80, 0xC0))
    if model.get("unk_token") is not None or not all(map(vocabulary.__contains__, continued)):
        return None
    return "".join(chr(code) for code in range(0x80) if write(chr(code))[0][0] not in vocabulary)


def _steps(step: Mapping[str, Any] | None, several: str) -> Iterator[Mapping[str, Any]]:
    """A step of tokenising, or those that it is a sequence of."""
    if step is None:
        return
    if step["type"] != "Sequence":
        yield step
        return
    for each in step[several]:
        yield from _steps(each, several)


def _drops(step: Mapping[str, Any]) -> bool:
    """Whether a pre-tokenizer may leave text out."""
    if step["type"] in ("ByteLevel", "Digits", "Metaspace"):
        return False
    return not (step["type"] in ("Split", "Punctuation") and step.get("behavior") != "Removed")


def _keeps_length(step: Mapping[str, Any]) -> bool:
    """Whether a normaliser never makes text shorter."""
    if step["type"] == "Replace":
        found = step["pattern"].get("String")
        return found is not None and len(found) <= len(step["content"])
    return step["type"] in ("Prepend", "ByteLevel")
