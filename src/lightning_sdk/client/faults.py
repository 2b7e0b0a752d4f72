"""Our own faults and losses inside the agent's process: counted by name, logged once each, never raised.

With ``LIGHTNING_STRICT=1`` (our tests) an internal error re-raises, so that no bug hides behind the rule that
the agent is never harmed. What a signal handler of the agent raised while our code ran (a deadline, an
interrupt) is no error of ours, whatever its type: it always goes on to the agent.
"""

from __future__ import annotations

import logging
import opcode
import os
import signal
import threading
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType

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


def is_of_agent(error: BaseException) -> bool:
    """Whether a signal handler of the agent raised it, or what it was made of."""
    return _raised_by_signal(error) is not None


def pass_on(error: BaseException) -> None:
    """Call it first wherever an exception is about to be swallowed: the agent's own goes on.

    Raises:
        BaseException: `error`, or the one that it was made of, if a signal handler of the agent raised it.
    """
    raised = _raised_by_signal(error)
    if raised is not None:
        count("interrupted_by_signal")
        raise raised


def pass_on_unless_raised(error: BaseException) -> None:
    """`pass_on` after code of the user's that should only have told something, such as a `__repr__`.

    Whatever its `raise` statements raise is swallowed, a `SystemExit` too; but an interrupt, or what another
    thread threw into this one, has come through no `raise` statement, and goes on.

    Raises:
        BaseException: `error`, if it is the agent's own.
    """
    pass_on(error)
    if not isinstance(error, Exception) and not _is_raised_by_statement(error):
        raise error


def _raised_by_signal(error: BaseException) -> BaseException | None:
    """The exception of a signal handler that `error` is, or was made of (`raise … from`)."""
    handlers = set(_handler_codes())
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        traceback = cause.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            if frame.f_code in handlers or _is_called_as_handler(frame):
                return cause
            traceback = traceback.tb_next
        cause = cause.__cause__
    return None


def _handler_codes() -> Iterator[CodeType]:
    """The code of each signal handler that is installed now."""
    for number in signal.valid_signals():
        handler: object = signal.getsignal(number)
        # Partials and bound methods lead to what they call; bounded, for an object may lead to itself.
        for _ in range(10):
            kind = type(handler)
            if handler is None or issubclass(kind, int):
                break
            code = getattr(handler, "__code__", None)
            if isinstance(code, CodeType):
                yield code
                break
            handler = getattr(handler, "func", None) or getattr(kind, "__call__", None)  # noqa: B004


def _is_called_as_handler(frame: FrameType) -> bool:
    """Whether it has the frame that it interrupted as an argument: nothing but a signal handler does.

    A handler that was replaced meanwhile (many restore the one before, then raise) is known by nothing else.
    """
    interrupted = frame.f_back
    code = frame.f_code
    if interrupted is None:
        return False
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)
    values = frame.f_locals
    for name in code.co_varnames[:count]:
        value = values.get(name)
        if value is interrupted or (type(value) is tuple and any(item is interrupted for item in value)):
            return True
    return False


_RAISE = opcode.opmap["RAISE_VARARGS"]


def _is_raised_by_statement(error: BaseException) -> bool:
    traceback = error.__traceback__
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_code[traceback.tb_lasti] == _RAISE


def note(place: str, error: BaseException) -> None:
    """Count an error that is not ours to raise (a hook, a plugin); log the first of its place.

    Raises:
        BaseException: `error` is the agent's own, see `pass_on`.
    """
    pass_on(error)
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


def warn(sentence: str) -> None:
    """Log something that the user should mend; once."""
    with _lock:
        first = sentence not in _logged
        _logged.add(sentence)
    if first:
        _logger.warning("lightning_sdk: %s", sentence)


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
