"""The store of a state directory."""

from __future__ import annotations

from lightning_sdk.collector.store.sqlite import SqliteStore
from lightning_sdk.errors import StoreError
from lightning_sdk.home import Home


def open_home_store(home: Home) -> SqliteStore:
    """Open the store of `home` for writing; make both where there is none.

    Raises:
        StoreBusyError: another process owns it.
        StoreError: the directory cannot be made, or the store not opened.
    """
    try:
        home.ensure()
    except OSError as error:
        raise StoreError(
            f"the state directory {home.path} cannot be made ({error.strerror}): "
            "choose another with LIGHTNING_HOME"
        ) from None
    return SqliteStore(home.store)
