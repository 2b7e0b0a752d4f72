"""What every test shares: strict mode, and a state directory of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the machine reaches a test, our own errors re-raise, and state lives in tmp_path."""
    for name in list(os.environ):
        if name.startswith(("LIGHTNING_", "OPENAI_", "OTEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LIGHTNING_STRICT", "1")
    monkeypatch.setenv("LIGHTNING_HOME", str(tmp_path / "home"))
    return
