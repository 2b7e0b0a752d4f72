"""Identifiers: 128 random bits each, straight from the operating system, so that a fork cannot repeat them."""

from __future__ import annotations

import os
from typing import Final

# Ours are 35 characters; a stranger's may be longer, but an index is no place for a document.
MAX_ID_CHARACTERS: Final = 256


def new_id(kind: str) -> str:
    """A fresh id such as ``ro_3f…`` (32 hexadecimal digits after the kind).

    Kinds in use: ``run`` run, ``ro`` rollout, ``sc`` scope, ``ca`` call, ``tc`` tool call, ``rw`` reward.
    """
    return f"{kind}_{os.urandom(16).hex()}"


def unfit(text: str) -> str | None:
    """Why `text` can be no id or name in a record, as the end of a sentence; None where it can."""
    if len(text) > MAX_ID_CHARACTERS:
        return f"has {len(text)} characters: at most {MAX_ID_CHARACTERS} can be stored"
    return unencodable(text)


def fitted_id(text: str) -> str:
    """`text` as an id that fits: what cannot be written is escaped, and a hash ends what is too long.

    The same for the same text, and another for another.
    """
    escaped = text.encode("utf-8", "backslashreplace").decode()
    if len(escaped) <= MAX_ID_CHARACTERS:
        return escaped
    import hashlib

    digest = hashlib.sha256(escaped.encode()).hexdigest()[:32]
    return f"{escaped[: MAX_ID_CHARACTERS - len(digest) - 1]}-{digest}"


def unencodable(text: str) -> str | None:
    """Why `text` cannot be written as UTF-8, as the end of a sentence; None where it can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "has half a surrogate pair in it, which UTF-8 cannot write"
    return None


def fitted(text: str) -> str:
    """`text` as a name that fits: what cannot be written is escaped, what is too long is cut."""
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_ID_CHARACTERS]


def new_producer() -> bytes:
    """A fresh producer id: 16 bytes."""
    return os.urandom(16)
