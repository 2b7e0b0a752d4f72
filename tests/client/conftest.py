"""Each test begins and ends without a runtime of the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lightning_sdk
from lightning_sdk.client import faults, scope


@pytest.fixture(autouse=True)
def _no_runtime() -> Iterator[None]:
    lightning_sdk.shutdown()
    # What other tests counted is in no record of this one.
    faults.take({})
    yield
    lightning_sdk.shutdown()


@pytest.fixture(autouse=True)
def _no_ended_rollout() -> None:
    """What ended in one test has not ended in the next."""
    scope._ended.set(None)
