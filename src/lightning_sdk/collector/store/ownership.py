"""One process owns a store: it holds a lock on the file `<path>.lock`, and loses it however it ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from lightning_sdk.errors import StoreBusyError, StoreError


class Ownership:
    """Holds a store for this process until `release()`.

    Raises:
        StoreBusyError: another process, or another part of this one, owns it.
        StoreError: the lock file cannot be made.
    """

    def __init__(self, store: Path) -> None:
        path = _lock_path(store)
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"the store {store} cannot be opened, {path} cannot be made ({error.strerror}): "
                "choose a directory that can be written with LIGHTNING_HOME"
            ) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            owner = owner_pid(store)
            who = f"process {owner}" if owner else "another process"
            raise StoreBusyError(
                f"the store {store} is in use by {who}: wait for it or stop it, "
                "or choose another directory with LIGHTNING_HOME"
            ) from None
        # Only for the sentence that others get; on a full disk they get one without it.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others have it. The file stays: were it deleted, two processes could lock two of one name."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def owner_pid(store: Path) -> int | None:
    """The process that last took the store; None if that is not known. It may be dead."""
    try:
        return int(_lock_path(store).read_text())
    except (OSError, ValueError):
        return None


def _lock_path(store: Path) -> Path:
    return store.with_name(store.name + ".lock")
