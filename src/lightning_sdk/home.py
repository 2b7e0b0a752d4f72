"""Where state lives: `.lightning/` of the working directory, or `LIGHTNING_HOME`; its spool may be elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Home:
    """The layout of the state directory. Paths are absolute; nothing is made until `ensure()`."""

    path: Path
    # Segments that wait to be sent or adopted.
    spool: Path

    @classmethod
    def locate(cls, path: StrPath | None = None, *, spool: StrPath | None = None) -> Home:
        """Where state lives now.

        Args:
            path: else `LIGHTNING_HOME`, else `.lightning` of the working directory.
            spool: else `LIGHTNING_SPOOL_DIR`, else `spool` in the state directory.
        """
        home = _absolute(path or os.environ.get("LIGHTNING_HOME") or ".lightning")
        return cls(home, _absolute(spool or os.environ.get("LIGHTNING_SPOOL_DIR") or home / "spool"))

    @property
    def store(self) -> Path:
        """The SQLite store."""
        return self.path / "traces.db"

    @property
    def collector(self) -> Path:
        """Where a running collector that owns the store writes its address (JSON)."""
        return self.path / "collector.json"

    def ensure(self) -> None:
        """Make the directory, private to its owner and ignored by git.

        Raises:
            OSError: it cannot be made.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore = self.path / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")


def _absolute(path: StrPath) -> Path:
    return Path(path).expanduser().absolute()
