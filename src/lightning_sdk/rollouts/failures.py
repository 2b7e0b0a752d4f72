"""When too many rollouts end badly, the run is given up, and says what the matter is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lightning_sdk.rollouts.job import Result
from lightning_sdk.rollouts.lifecycle import BAD, State

_MAX_CHARACTERS = 200


@dataclass(slots=True)
class Failures:
    """Counts how rollouts end."""

    ended: int = 0
    bad: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, state: State, result: Result | None) -> None:
        """A rollout has ended."""
        self.ended += 1
        if state in BAD:
            self.bad += 1
            self.errors[sentence_of(result)] += 1

    def too_many(self, share: float, least_ended: int) -> bool:
        """Whether more than `share` of those that have ended did so badly, of `least_ended` at least."""
        return self.ended >= max(least_ended, 1) and self.bad > share * self.ended

    def commonest(self) -> str:
        """The commonest error, and how often it came."""
        if not self.errors:
            return "no error was told"
        ((sentence, count),) = self.errors.most_common(1)
        return f"{sentence} ({count} {'time' if count == 1 else 'times'})"


def sentence_of(result: Result | None) -> str:
    """An error on one line, short: what equal errors have in common."""
    if result is None or result.error_type is None:
        reason = result.truncation_reason if result is not None else None
        return reason or "no error was told"
    name = result.error_type.rpartition(".")[2]
    message = " ".join((result.error_message or "").split())
    shown = message if len(message) <= _MAX_CHARACTERS else f"{message[: _MAX_CHARACTERS - 1]}…"
    return f"{name}: {shown}" if shown else name
