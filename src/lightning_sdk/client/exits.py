"""The end of a process: what waits is sent while that is still possible, and senders are stopped last.

Python ends in two steps:

1. The main thread has run to its end. Other threads go on, and new ones can be started.
2. Only daemon threads are left. The `atexit` hooks run, the latest first. From Python 3.12 on no thread can be
   started any more, and gRPC needs some for a connection.

So a program that was over before its sender had connected has to wait in the first step; what is written
later goes out through that connection before the last hook of ours. A child of multiprocessing takes the first
step only.

This module is imported with the package: its `atexit` hook runs after those that agent and client register.
"""

from __future__ import annotations

import atexit
import math
import threading
from typing import Final, Protocol
from weakref import WeakSet

# How long the end of a process may be held up in all.
_ALLOWANCE_S: Final = 5.0
# What a later step is left with when an earlier one has used it up.
_LEAST_S: Final = 0.2
_STOP_S: Final = 2.0


class Ending(Protocol):
    """Something that has work to finish before the process ends."""

    def drain(self, timeout_s: float) -> None:
        """Finish it; threads can still be started."""

    def stop(self, timeout_s: float) -> bool:
        """End what runs in the background: this is the last call."""


_watched: WeakSet[Ending] = WeakSet()
_ending_thread: int | None = None
_spent_s = 0.0
_all_stopped = False


def watch_exit(subject: Ending) -> None:
    """Tell `subject` of the end of the process, as long as it lives; at once if that was told already."""
    _watched.add(subject)
    if _all_stopped:
        subject.stop(_LEAST_S)


def forget(subject: Ending) -> None:
    """Do not tell it any more."""
    _watched.discard(subject)


def has_begun() -> bool:
    """Whether the process is ending."""
    return _ending_thread is not None


def allowance_s() -> float:
    """How long this thread may still wait: without limit, unless it is the one that ends the process."""
    if _ending_thread != threading.get_ident():
        return math.inf
    return max(_ALLOWANCE_S - _spent_s, _LEAST_S)


def spend(waited_s: float) -> None:
    """Take account of a wait."""
    global _spent_s
    if _ending_thread == threading.get_ident():
        _spent_s += waited_s


def _drain_all() -> None:
    global _ending_thread
    _ending_thread = threading.get_ident()
    for subject in list(_watched):
        subject.drain(allowance_s())


def _stop_all() -> None:
    """A thread inside gRPC while the interpreter goes away could crash the process."""
    global _ending_thread, _all_stopped
    _ending_thread = threading.get_ident()
    _all_stopped = True
    for subject in list(_watched):
        subject.stop(_STOP_S)


def _register() -> None:
    atexit.register(_stop_all)
    # What concurrent.futures ends its workers by. Without it only what the sender has begun to send arrives.
    first_step = getattr(threading, "_register_atexit", None)
    try:
        if first_step is not None:
            first_step(_drain_all)
    except RuntimeError:
        pass  # we are imported while the process ends


_register()
