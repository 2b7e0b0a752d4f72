"""What every store must do, as tests. A store's test module subclasses `StoreContract`, with `open_store`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lightning_sdk.collector.store.base import Store
from support.store_joining_contract import JoiningContract
from support.store_keeping_contract import KeepingContract
from support.store_reading_contract import ReadingContract
from support.store_summary_contract import SummaryContract
from support.stores import OpenStore


class StoreContract(KeepingContract, SummaryContract, JoiningContract, ReadingContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Opens the same store, again and again."""
        raise NotImplementedError("a store's test class supplies this fixture")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Iterator[Store]:
        store = open_store()
        yield store
        store.close()
