"""A run's journal: `.lightning/runs/<run_id>/journal.jsonl`, append-only, one event a line.

    {"type": "run", "format": 1, "run_id": …, "options": {…}, "time_ns": …}
    {"type": "group", "group_id": …, "round": 0, "split": …, "n": 4, "task": {…}}
    {"type": "started", "rollout_id": …, "attempt": 1}
    {"type": "ended", "state": "succeeded", "result": {…}}
    {"type": "reopened", "rollout_id": …}
    {"type": "stopped", "reason": …}

A line is one `write(2)`: it survives the death of the process. A line that was cut short by a crash is the last one;
whoever opens the journal again ends it, and it is passed over. The writer holds an exclusive `flock`. No secret is in
it: routing is not.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from lightning_sdk.errors import RunError
from lightning_sdk.home import Home

FORMAT: Final = 1
JOURNAL: Final = "journal.jsonl"
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def run_directory(home: Home, run_id: str) -> Path:
    """Where the files of a run are.

    Raises:
        RunError: the id cannot be the name of a directory.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise RunError(f"the run id {run_id!r} cannot name a directory: use letters, digits, _ . and -")
    return home.path / "runs" / run_id


class RunJournal:
    """The journal of one run, open for writing."""

    def __init__(self, directory: Path) -> None:
        """Open it, or make it.

        Raises:
            RunError: another process writes it, or it cannot be opened.
        """
        self.path = directory / JOURNAL
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RunError(f"the run's journal cannot be opened: {error}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise RunError(
                f"another process runs {directory.name} (it holds {self.path}): wait for it, or end it first"
            ) from None
        self._end_torn_line()

    def write(self, kind: str, **values: Any) -> None:
        """Append an event.

        Raises:
            RunError: it cannot be written.
        """
        line = orjson.dumps({"type": kind, **values, "time_ns": time.time_ns()}) + b"\n"
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            raise RunError(f"the run's journal {self.path} cannot be written: {error}") from None

    def close(self) -> None:
        """Let others write it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _end_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")


def read_journal(directory: Path) -> Iterator[dict[str, Any]]:
    """The events of a run, in order. What is no event (a torn line) is passed over.

    Raises:
        RunError: there is no such run, or a newer version wrote it.
    """
    path = directory / JOURNAL
    try:
        lines = path.open("rb")
    except OSError:
        raise RunError(f"there is no run {directory.name} to resume: {path} does not exist") from None
    with lines:
        for line in lines:
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if not isinstance(event, dict):
                continue
            if event.get("type") == "run" and event.get("format") != FORMAT:
                raise RunError(
                    f"{path} has format {event.get('format')!r}, this version reads {FORMAT}: resume it with the "
                    "version that began it"
                )
            yield event
