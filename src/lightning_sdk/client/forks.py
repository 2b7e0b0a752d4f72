"""What a fork must do to the spool: the child starts anew, and keeps no lock of its parent.

A `flock` belongs to the open file, which parent and child share: as long as the child has the descriptor,
the lock outlives the parent, and nobody could adopt what the parent left. So every file on which a lock
is held is an `OwnedFile`, and the child closes them all. gRPC does not survive a fork: a child whose parent
had loaded it must never touch it, which `grpc_is_inherited` tells.

This module is imported with the package, so that no later fork is missed. Of a fork before that nothing can be
known: if gRPC was loaded then, it may be the process's own.
"""

from __future__ import annotations

# Before we register: Python runs the hooks before a fork in the reverse order, so that we have what we wait for
# when logging takes its lock, which any thread that we wait for may need.
import logging  # noqa: F401
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

# How long a fork waits for another thread that opens a file or imports.
_FORK_WAIT_S: Final = 5.0
# How long the opening of a file, or an import, waits for that of another thread. It may never end: a garbage
# collection there can finalise an agent's stream, whose record needs a lock that ours is called under; and an
# import may need a module that the waiting thread is importing.
_UNDIVIDED_WAIT_S: Final = 1.0


class Hold(Protocol):
    """Takes a lock, waiting for it so long at most, and gives it back in the parent when the fork is over."""

    def __call__(self, lock: threading.RLock, timeout_s: float, /) -> None: ...


class Forkable(Protocol):
    """Something that must be told of a fork."""

    def before_fork(self, hold: Hold) -> None:
        """A child will be made, by this thread."""

    def after_fork_in_parent(self) -> None:
        """A child was made."""

    def after_fork_in_child(self) -> None:
        """We are the child: other threads are gone, and every `OwnedFile` is closed."""


class _Forking(threading.local):
    """The locks that this thread holds, or tried to, while it forks."""

    def __init__(self) -> None:
        self.held: list[threading.RLock] = []


# Reentrant, because a finaliser that runs in the middle may open a file, or fork.
_opening = threading.RLock()
_importing = threading.RLock()
_forking = _Forking()
_owned: set[OwnedFile] = set()
_forkables: WeakSet[Forkable] = WeakSet()
_grpc_inherited = False


def undivided_import() -> AbstractContextManager[None]:
    """Keep a fork from cutting an import in two: the child would wait for ever for the thread that did it."""
    return _undivided(_importing, lambda: None)


def _undivided_opening() -> AbstractContextManager[None]:
    """Keep a fork from coming between a file and its account here; at worst the child holds one too many."""
    return _undivided(_opening, _replace_opening)


def _replace_opening() -> None:
    """Have nobody wait again for an opening that did not end in time.

    It waits for us, or a signal handler of the agent raised just before it gave the lock back.
    """
    global _opening
    _opening = threading.RLock()


@contextmanager
def _undivided(lock: threading.RLock, on_timeout: Callable[[], None]) -> Iterator[None]:
    held = False
    try:
        # In here, so that what a signal handler raises next does not leave it held for ever.
        held = lock.acquire(timeout=_UNDIVIDED_WAIT_S)
        if not held:
            on_timeout()
        yield
    finally:
        if held:
            lock.release()


class OwnedFile:
    """An open file whose lock is this process's alone: closed in a forked child."""

    def __init__(self, path: Path, flags: int, mode: int = 0o600) -> None:
        """Open it; a symbolic link is refused.

        Raises:
            OSError: as `os.open`.
        """
        with _undivided_opening():
            # Without O_NONBLOCK a named pipe in the directory would hold us up for ever.
            self.fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
            _owned.add(self)

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self.fd < 0

    def close(self) -> None:
        """Close it, which gives up the lock; idempotent. `fd` is -1 from then on."""
        with _undivided_opening():
            fd, self.fd = self.fd, -1
            _owned.discard(self)
            if fd >= 0:
                os.close(fd)


def watch_forks(subject: Forkable) -> None:
    """Tell `subject` of every fork, as long as it lives."""
    _forkables.add(subject)


def grpc_is_inherited() -> bool:
    """Whether this process was forked from one that had loaded gRPC, and so must not use it."""
    return _grpc_inherited


def _before() -> None:
    for subject in list(_forkables):
        subject.before_fork(_hold)
    _hold(_importing, _FORK_WAIT_S)
    _hold(_opening, _FORK_WAIT_S)


def _hold(lock: threading.RLock, timeout_s: float) -> None:
    # Noted first: Python swallows what a signal handler raises in here, and the lock would be held for ever.
    _forking.held.append(lock)
    lock.acquire(timeout=timeout_s)


def _release() -> None:
    held, _forking.held = _forking.held, []
    for lock in held:
        with suppress(RuntimeError):  # it was not to be had in time
            lock.release()


def _after_in_parent() -> None:
    _release()
    for subject in list(_forkables):
        subject.after_fork_in_parent()


def _after_in_child() -> None:
    global _opening, _importing, _grpc_inherited
    _grpc_inherited = _grpc_inherited or "grpc" in sys.modules
    # Those that we did not get are held by threads that are gone.
    _forking.held = []
    _opening, _importing = threading.RLock(), threading.RLock()
    for file in list(_owned):
        file.close()
    for subject in list(_forkables):
        subject.after_fork_in_child()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
