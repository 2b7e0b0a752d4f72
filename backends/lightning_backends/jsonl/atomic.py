"""A file that is there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from lightning_sdk.errors import ExportError


class AtomicFile:
    """Collects bytes in a temporary file beside `path`, until `place` puts it there; else nothing stays.

    Every method raises ExportError where the file system refuses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Buffered by itself; open() keeps the permissions that a new file there has.
            self._file = self._temporary.open("xb", buffering=1 << 20)

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError:
            # A full disk, met again while the rest of the buffer is flushed: the first error is on its way.
            pass
        self._temporary.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        with self._explained():
            self._file.write(data)

    def seal(self) -> None:
        """Everything written is on the disk; no more can be."""
        with self._explained():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def place(self) -> None:
        """Take the place of `path`. Comes after `seal`."""
        with self._explained():
            self._temporary.replace(self._path)
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ExportError(
                f"{self._path} cannot be written ({reason}): choose another place, or make room"
            ) from error
