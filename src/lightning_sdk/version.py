"""The version of this distribution, and the mark by which `lsdk` knows that the package is ours."""

from __future__ import annotations

DISTRIBUTION = "agent-lightning-sdk"


def version() -> str:
    """The installed version, or "0+unknown" in a checkout that was never installed."""
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0+unknown"
