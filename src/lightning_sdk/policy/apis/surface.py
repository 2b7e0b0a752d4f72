"""What one API is to the endpoint: how its requests are read, and its answers, events and refusals written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lightning_sdk.policy.answers import Answer
from lightning_sdk.policy.engine import Delta
from lightning_sdk.policy.errors import ApiError
from lightning_sdk.policy.policies import Policy
from lightning_sdk.policy.sampling import SamplingRequest

Body = dict[str, Any]


class EventWriter(Protocol):
    """The events of one answer that is streamed."""

    def begin(self) -> list[Body]:
        """Those before the first token."""

    def add(self, delta: Delta) -> list[Body]:
        """Those of what a choice gained; the answer has it already."""

    def end(self) -> list[Body]:
        """Those after the last token of the last choice."""


class Asked(Protocol):
    """A request, read: what is sampled for it, and how it is answered."""

    @property
    def model(self) -> str:
        """The policy's name, unless a header names one."""

    @property
    def is_streamed(self) -> bool:
        """Whether it wants events."""

    @property
    def uses_tools(self) -> bool:
        """Whether the answer may call tools."""

    def sampling(self) -> SamplingRequest:
        """What it says of sampling."""

    def prompt(self, policy: Policy) -> str | Sequence[int]:
        """What the policy goes on from: rendered text, or token ids.

        Raises:
            ApiError: the policy cannot read it.
        """

    def whole(self, answer: Answer) -> Body:
        """The body of an answer that is finished."""

    def writer(self, answer: Answer) -> EventWriter:
        """What writes the events of an answer that begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API of those that the endpoint speaks."""

    # As call records name the shape of request and response.
    name: str
    # Below /v1/.
    path: str
    id_prefix: str
    # Raises ApiError for what is no such request, or asks for what is not implemented.
    read: Callable[[bytes], Asked]
    refusal: Callable[[ApiError], Body]
    # What of a refusal is the data of an event, where a stream has begun.
    refusal_event: Callable[[ApiError], Body]
    # Whether events are named, by their "type"; else the end is marked with [DONE].
    names_events: bool = False
