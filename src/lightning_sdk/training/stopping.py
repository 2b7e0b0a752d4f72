"""When a run ends: pure rules over what has happened so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning_sdk.training.settings import LearningTable, ValidationTable

StopReason = Literal["rounds", "target", "patience", "nothing_to_train_on", "interrupted"]


@dataclass
class Stopping:
    """Counts what decides about the end. Its fields are part of a checkpoint.

    Attributes:
        best: the best mean reward of a validation; None before the first.
        best_round: rounds that were done then.
        stale: validations since without a better one.
        idle: rounds in a row in which nothing was trained on.
        idle_reasons: why not, in those.
    """

    best: float | None = None
    best_round: int | None = None
    stale: int = 0
    idle: int = 0
    idle_reasons: Counter[str] = field(default_factory=Counter)

    def trained(self, tokens: float, reasons: Mapping[str, float]) -> None:
        """A round is over, in which so many tokens were trained, and transitions left out for these reasons."""
        if tokens > 0:
            self.idle = 0
            self.idle_reasons.clear()
        else:
            self.idle += 1
            self.idle_reasons.update({reason: round(many) for reason, many in reasons.items()})

    def validated(self, rounds_done: int, reward: float | None) -> bool:
        """A validation is over; whether it is the best so far. One without any reward counts as none."""
        if reward is None:
            return False
        if self.best is None or reward > self.best:
            self.best, self.best_round, self.stale = reward, rounds_done, 0
            return True
        self.stale += 1
        return False

    def reason(
        self, rounds_done: int, learning: LearningTable, validation: ValidationTable
    ) -> StopReason | None:
        """Why the run ends now; None where it goes on."""
        if validation.target is not None and self.best is not None and self.best >= validation.target:
            return "target"
        if validation.patience is not None and self.stale >= validation.patience:
            return "patience"
        if self.idle >= learning.max_idle_rounds:
            return "nothing_to_train_on"
        return "rounds" if rounds_done >= learning.rounds else None

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "best": self.best,
            "best_round": self.best_round,
            "stale": self.stale,
            "idle": self.idle,
            "idle_reasons": dict(self.idle_reasons),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Stopping:
        """What `to_json` gave."""
        return cls(**{**value, "idle_reasons": Counter(value["idle_reasons"])})
