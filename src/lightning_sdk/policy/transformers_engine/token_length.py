"""How much text one token can stand for, read off a tokenizer's definition.

A prompt of megabytes cannot fit any context, but tokenising it takes half a minute to say so. Where no token
is longer than L characters, a text of N characters has N / L tokens or more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

# A character that normalisation to NFC composes comes from four characters at the most.
_NFC_SHRINKS = 4


def most_characters_a_token(tokenizer: Any) -> int | None:
    """The most characters of text that one token stands for; None where that has no bound, or none is known.

    Known are byte-level vocabularies, and others that fall back to bytes, with normalisers that drop nothing.
    Elsewhere one token may stand for any run of unknown characters, or a normaliser may remove text.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    definition = json.loads(backend.to_str())
    model, added = definition["model"], definition.get("added_tokens") or []
    if model["type"] != "BPE":
        return None
    steps = list(_steps(definition.get("pre_tokenizer"), "pretokenizers"))
    if any(step["type"] == "ByteLevel" for step in steps):
        alphabet = ByteLevel.alphabet()
    else:
        alphabet = [f"<0x{byte:02X}>" for byte in range(256)] if model.get("byte_fallback") else []
    # Of what has no token at all, nothing may be left.
    covers_all = bool(alphabet) and model["vocab"].keys() >= set(alphabet)
    takes_space = any(token["lstrip"] or token["rstrip"] for token in added)
    drops = any(_drops(step) for step in steps) or definition.get("truncation") is not None
    shrinks = 1
    for step in _steps(definition.get("normalizer"), "normalizers"):
        if step["type"] == "NFC":
            shrinks = _NFC_SHRINKS
        elif not _keeps_length(step):
            return None
    if not covers_all or takes_space or drops:
        return None
    # In a byte-level vocabulary one character of a token is one byte, which is no more than a character.
    return shrinks * max(map(len, [*model["vocab"], *(token["content"] for token in added)]))


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
