"""Which rules assembled something: what another version of them made must not pass for what this one makes."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Final

FINGERPRINT_BYTES: Final = 16
_PACKAGE: Final = Path(__file__).parents[1]
# What `assemble` is made of: the folder of its rules, and what they use.
_SOURCES: Final = ("mdp/**/*.py", "records.py", "ids.py", "_proto/records_pb2.py")


@cache
def fingerprint() -> bytes:
    """A hash of the source of everything that assembles; of the version where no source is at hand."""
    sources = sorted(path for pattern in _SOURCES for path in _PACKAGE.glob(pattern))
    digest = blake2b(version("agent-lightning-sdk").encode(), digest_size=FINGERPRINT_BYTES)
    for path in sources:
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.digest()
