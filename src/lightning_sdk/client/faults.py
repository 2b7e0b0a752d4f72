"""Our own faults and losses inside the agent's process: counted by name, logged once each, never raised.

With ``LIGHTNING_STRICT=1`` (our tests) an internal error re-raises, so that no bug hides behind the rule that
the agent is never harmed.
"""

from __future__ import annotations

import logging
import os
import threading
from types import TracebackType

_logger = logging.getLogger("lightning_sdk")
# Reentrant: a garbage collection inside the locked lines may finish a generator, which may count too.
_lock = threading.RLock()
_counters: dict[str, int] = {}
# What was counted and is in no one's account yet, see `take`.
_untaken: dict[str, int] = {}
_logged: set[str] = set()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    # They are the parent's to tell.
    _counters.clear()
    _untaken.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def counters() -> dict[str, int]:
    """Internal errors (``error.<place>``) and drops of this process, each with how many."""
    with _lock:
        return dict(_counters)


def count(name: str, by: int = 1) -> None:
    """Add to the counter `name`."""
    with _lock:
        _counters[name] = _counters.get(name, 0) + by
        _untaken[name] = _untaken.get(name, 0) + by


def take(account: dict[str, int]) -> None:
    """Add what nobody has taken yet to `account`: each count is in one account, of whoever wrote it down."""
    if not _untaken:
        return
    with _lock:
        for name, value in _untaken.items():
            account[name] = account.get(name, 0) + value
        _untaken.clear()


def is_strict() -> bool:
    """Whether our own errors re-raise."""
    return os.environ.get("LIGHTNING_STRICT") == "1"


def note(place: str, error: BaseException) -> None:
    """Count an error that is not ours to raise (a hook, a plugin); log the first of its place."""
    count(f"error.{place}")
    with _lock:
        first = place not in _logged
        _logged.add(place)
    if first:
        _logger.warning(
            "lightning_sdk: %s failed (%s: %s); your program is not affected, more of these are only counted",
            place,
            type(error).__name__,
            error,
            exc_info=error,
        )


def report(place: str, error: Exception) -> None:
    """Count and log an internal error; in strict mode raise it again."""
    note(place, error)
    if is_strict():
        raise error


class guard:  # noqa: N801 - used as a statement: `with guard("rewards"):`
    """Keep an exception of ours away from the agent: what is raised inside is reported under `place`."""

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        note(self._place, error)
        return not is_strict()
