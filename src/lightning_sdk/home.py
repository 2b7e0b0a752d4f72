"""Where state lives: `.lightning/` of the working directory, or `LIGHTNING_HOME`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """The layout of the state directory. Paths are absolute; nothing is made until `ensure()`."""

    path: Path

    @classmethod
    def locate(cls, path: str | os.PathLike[str] | None = None) -> Home:
        """`path`, else `LIGHTNING_HOME`, else `.lightning` of the working directory, made absolute now."""
        chosen = path or os.environ.get("LIGHTNING_HOME") or ".lightning"
        return cls(Path(chosen).expanduser().absolute())

    @property
    def spool(self) -> Path:
        """Segments that wait to be sent or adopted."""
        return self.path / "spool"

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
