"""The life of a rollout, as a table. Pure.

    queued ──start──▶ running ──succeed──▶ succeeded
      ▲                │ │ │
      │                │ │ └─fail, truncate, lose, cancel──▶ failed, truncated, lost, cancelled
      │                │ └───retry──▶ waiting ──start──▶ running (the next attempt)
      └───interrupt────┘

Each `start` makes the next attempt, numbered from 1. What is told of another attempt than the present one, or of a
rollout that has ended, came too late: it changes nothing, and the caller counts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from lightning_sdk.rollouts.job import Outcome

State = Literal["queued", "running", "waiting", "succeeded", "failed", "truncated", "cancelled", "lost"]
Event = Literal[
    "start",  # an attempt is given to a worker
    "succeed",  # the attempt has ended by itself
    "fail",  # an exception left the agent
    "truncate",  # something cut it off: its time, a limit of turns
    "lose",  # its worker died
    "cancel",  # somebody wanted it to end
    "retry",  # the attempt has ended badly, and another one comes after a while
    "interrupt",  # the runner stopped while it ran; does not count as an attempt that was used up
    "reopen",  # it ended badly, and a person wants it run again
]

FINAL: Final[frozenset[State]] = frozenset({"succeeded", "failed", "truncated", "cancelled", "lost"})
BAD: Final[frozenset[State]] = frozenset({"failed", "truncated", "lost"})

TABLE: Final[Mapping[tuple[State, Event], State]] = {
    ("queued", "start"): "running",
    ("waiting", "start"): "running",
    ("running", "succeed"): "succeeded",
    ("running", "fail"): "failed",
    ("running", "truncate"): "truncated",
    ("running", "lose"): "lost",
    ("running", "retry"): "waiting",
    ("running", "interrupt"): "queued",
    ("waiting", "interrupt"): "queued",
    ("queued", "cancel"): "cancelled",
    ("waiting", "cancel"): "cancelled",
    ("running", "cancel"): "cancelled",
    ("failed", "reopen"): "queued",
    ("truncated", "reopen"): "queued",
    ("lost", "reopen"): "queued",
    ("cancelled", "reopen"): "queued",
}

EVENT_OF: Final[Mapping[Outcome, Event]] = {
    "succeeded": "succeed",
    "failed": "fail",
    "truncated": "truncate",
    "cancelled": "cancel",
    "lost": "lose",
}


@dataclass(frozen=True, slots=True)
class Life:
    """Where a rollout is in its life."""

    state: State = "queued"
    # The number of its latest attempt; 0 before the first.
    attempt: int = 0
    # Attempts that count against the most that are allowed: all but those that the runner itself broke off.
    used: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in FINAL


def advance(life: Life, event: Event, attempt: int | None = None) -> Life | None:
    """What becomes of `life`.

    Args:
        life: where the rollout is.
        event: what has happened.
        attempt: to which attempt, where it happened to one.

    Returns:
        Where it is now. None: this came too late, and changes nothing.

    Raises:
        ValueError: it cannot have happened: the caller is wrong about where the rollout is.
    """
    if attempt is not None and (attempt < life.attempt or life.state != "running"):
        return None
    if attempt is not None and attempt > life.attempt:
        raise ValueError(f"attempt {attempt} cannot {event}: the latest that began is {life.attempt}")
    following = TABLE.get((life.state, event))
    if following is None:
        raise ValueError(f"a rollout that is {life.state} cannot {event}")
    if event == "start":
        return Life(following, life.attempt + 1, life.used + 1)
    if event == "interrupt" and life.state == "running":
        return replace(life, state=following, used=life.used - 1)
    if event == "reopen":
        return replace(life, state=following, used=0)
    return replace(life, state=following)
