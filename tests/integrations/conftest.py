"""The OpenAI integration, installed for one test, and a client of a fake server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lightning_integrations.openai import OpenAIIntegration
from support.memory_recorder import MemoryRecorder


@pytest.fixture
def recorder() -> Iterator[MemoryRecorder]:
    """Receives the calls: the integration is installed while the test runs."""
    memory = MemoryRecorder()
    undo = OpenAIIntegration().install(memory)
    yield memory
    undo()
