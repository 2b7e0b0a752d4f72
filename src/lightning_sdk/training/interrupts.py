"""Ctrl-C and SIGTERM while a run goes on: the first is kept until the loop can save, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):  # noqa: N818 - no error
    """Somebody wants the run to end; the trainer is between two rounds."""


class Interrupts:
    """Whether the run was asked to end."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self._asked = threading.Event()
        self._on_first = on_first

    def check(self) -> None:
        """Raises Interrupted where it was."""
        if self._asked.is_set():
            raise Interrupted

    def wait(self, seconds: float) -> None:
        """Sleep so long; raises Interrupted as soon as it is asked."""
        self._asked.wait(seconds)
        self.check()

    def ask(self) -> None:
        """Ask it."""
        self._asked.set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let signals ask it, in the main thread; elsewhere they stay as they are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked.is_set():
            raise KeyboardInterrupt
        self._asked.set()
        self._on_first()
