"""A signal to another thread that may be given anywhere, even by a finaliser in the middle of waiting for it."""

from __future__ import annotations

import queue
from typing import Final

_TOKEN: Final = None


class Wakeup:
    """Like `threading.Event`, but `set` takes no lock that its own thread could hold already.

    A garbage collection runs in any thread and at any line, inside `Event.wait` and `Event.clear` too, and
    may finalise an agent's stream, whose record wakes the sender: on an Event that would wait for ever.
    `SimpleQueue.put` is reentrant.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Whether it was set since it was last cleared."""
        return self._is_set

    def set(self) -> None:
        """Wake whoever waits, until `clear`."""
        if not self._is_set:
            self._is_set = True
            self._tokens.put(_TOKEN)

    def clear(self) -> None:
        """Forget that it was set. What its setter did before is visible to whoever looks afterwards."""
        self._is_set = False
        try:
            while True:
                self._tokens.get_nowait()
        except queue.Empty:
            pass

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set; False if it was not in time."""
        if not self._is_set:
            try:
                self._tokens.get(timeout=timeout_s)
            except queue.Empty:
                return self._is_set
            # Whoever else waits is woken too.
            self._tokens.put(_TOKEN)
        return True
