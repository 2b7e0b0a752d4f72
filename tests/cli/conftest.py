"""What tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_sdk.home import Home


@pytest.fixture
def spool() -> Path:
    """The spool of the test's own state directory."""
    return Home.locate().spool
