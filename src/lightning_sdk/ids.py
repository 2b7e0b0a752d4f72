"""Identifiers: 128 random bits each, straight from the operating system, so that a fork cannot repeat them."""

from __future__ import annotations

import os


def new_id(kind: str) -> str:
    """A fresh id such as ``ro_3f…`` (32 hexadecimal digits after the kind).

    Kinds in use: ``run`` run, ``ro`` rollout, ``sc`` scope, ``ca`` call, ``tc`` tool call.
    """
    return f"{kind}_{os.urandom(16).hex()}"


def new_producer() -> bytes:
    """A fresh producer id: 16 bytes."""
    return os.urandom(16)
