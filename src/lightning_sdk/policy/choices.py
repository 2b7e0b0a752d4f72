"""One answer of several as it grows, and what every body of an answer repeats."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_sdk.policy.engine import SampledToken


@dataclass(slots=True)
class Choice:
    """One answer as it grows."""

    index: int
    tokens: list[SampledToken] = field(default_factory=list)
    text: str = ""
    # In the words of chat completions: "stop", "length" or "tool_calls"; None until it is done.
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every body and event of one answer repeats."""

    id: str
    created_s: int
    model: str
