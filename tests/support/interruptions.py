"""A signal whose handler raises, at every place of our code in turn."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType

_OURS = ("lightning_sdk", "lightning_integrations")


class Deadline(Exception):
    """What the agent's handler raises."""


class TimedOut(Deadline, TimeoutError):
    """The same, of a kind that files raise too."""


def swallowed_at(
    work: Callable[[], object], kind: type[Deadline] = Deadline, events: tuple[str, ...] = ("call",)
) -> tuple[int, list[str]]:
    """Run `work` again and again, each time with a signal one call of a function of ours later.

    Args:
        work: what is interrupted.
        kind: what the handler raises.
        events: "call", and "c_call" to count what our functions call in C too.

    Returns:
        How many places were tried until it came to its end first, and those where the exception of the handler
        did not come out of `work`.
    """

    def on_signal(number: int, interrupted: FrameType | None) -> None:
        raise kind

    before = signal.signal(signal.SIGUSR1, on_signal)
    swallowed: list[str] = []
    try:
        for place in range(1, 10_000):
            where = _interrupted(work, place, events)
            if where is None:
                return place - 1, swallowed
            if where:
                swallowed.append(where)
    finally:
        signal.signal(signal.SIGUSR1, before)
    raise AssertionError("the work never ended before the signal")


def _interrupted(work: Callable[[], object], place: int, events: tuple[str, ...]) -> str | None:
    """None: no signal came; "": its exception came out; else where it was swallowed."""
    calls = 0
    where: str | None = None

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls, where
        if event in events and _is_of_ours(frame):
            calls += 1
            if calls == place:
                where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                signal.raise_signal(signal.SIGUSR1)

    sys.setprofile(profile)
    try:
        work()
    except Deadline:
        return ""
    finally:
        sys.setprofile(None)
    return where


def _is_of_ours(frame: FrameType) -> bool:
    if frame.f_code.co_name == "__del__":
        return False  # Python discards what is raised there
    return any(name in frame.f_code.co_filename for name in _OURS)
