"""Which attempts are followed by another one, and after how long."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lightning_sdk.errors import ConfigError
from lightning_sdk.rollouts.job import TIMEOUT, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """When a rollout is tried again.

    `on` holds "lost" (its worker died), "timeout", "failed" (any exception), and names of exception classes, with
    their module or without, as patterns such as "openai.*" or "RateLimitError".
    """

    # Attempts a rollout, the first included.
    max_attempts: int = 2
    on: Sequence[str] = ("lost",)
    # Before the second attempt; doubled for each further one, up to the most.
    backoff_s: float = 1.0
    max_backoff_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: a number out of range, or an empty name.
        """
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts={self.max_attempts}: a rollout has at least 1 attempt")
        if self.backoff_s < 0 or self.max_backoff_s < 0:
            raise ConfigError(f"backoff_s={self.backoff_s}: a rollout waits at least 0 seconds")
        if not all(name.strip() for name in self.on):
            raise ConfigError(f"retries on {list(self.on)}: a name is empty")

    def allows(self, result: Result, used: int) -> bool:
        """Whether another attempt follows.

        Args:
            result: of the attempt that has ended.
            used: how many attempts there were, that one included.
        """
        return used < self.max_attempts and any(self._matches(name, result) for name in self.on)

    def delay_s(self, rollout_id: str, used: int) -> float:
        """How long to wait after `used` attempts: between half and the whole of the doubled time.

        The same for the same rollout and number, but different among rollouts, so that they do not all come at once.
        """
        whole = min(self.backoff_s * 2.0 ** min(used - 1, 60), self.max_backoff_s)
        draw = hashlib.sha256(f"{rollout_id} {used}".encode()).digest()
        return whole * (0.5 + 0.5 * int.from_bytes(draw[:4], "big") / 2**32)

    @staticmethod
    def _matches(name: str, result: Result) -> bool:
        if name in ("lost", "failed"):
            return result.outcome == name
        if name == TIMEOUT:
            return result.outcome == "truncated" and result.truncation_reason == TIMEOUT
        kind = result.error_type
        if result.outcome != "failed" or kind is None:
            return False
        return fnmatchcase(kind, name) or fnmatchcase(kind.rpartition(".")[2], name)
