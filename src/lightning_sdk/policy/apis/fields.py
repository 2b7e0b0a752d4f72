"""What requests for chat completions and for completions have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from lightning_sdk.policy.apis.reading import (
    Count,
    Penalty,
    Probability,
    Strict,
    Temperature,
    check_stops,
)
from lightning_sdk.policy.engine import Constraint
from lightning_sdk.policy.errors import invalid
from lightning_sdk.policy.sampling import SHAPING, SamplingRequest

MOST_TOP_LOGPROBS: Final = 20
_MOST_CHOICES: Final = 128


class StreamOptions(Strict):
    """How to stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CompletionFields(Strict):
    """The fields of both."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=_MOST_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    max_tokens: Count | None = None
    return_token_ids: bool | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether it wants events."""
        return bool(self.stream)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options is not None and self.stream_options.include_usage)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def sampled(
        self,
        told: Mapping[str, Any],
        *,
        max_tokens: int | None,
        top_logprobs: int,
        constraint: Constraint | None = None,
    ) -> SamplingRequest:
        """What it says of sampling.

        Args:
            told: the fields of its own kind that a record shall tell.
            max_tokens: how many an answer may have.
            top_logprobs: how many likeliest tokens it wants to know.
            constraint: what the answer must follow.
        """
        names = ("temperature", "top_p", "seed", "n", "stop", "max_tokens", *SHAPING)
        given = {**{name: getattr(self, name) for name in names}, **told}
        return SamplingRequest(
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            n=self.n,
            stop=self.stops,
            max_tokens=max_tokens,
            top_logprobs=top_logprobs,
            shaping={name: given[name] for name in SHAPING if given[name] is not None},
            constraint=constraint,
            told={name: value for name, value in given.items() if value is not None},
        )


def check_completion_fields(request: CompletionFields) -> None:
    """Refuse fields that do not go together.

    Raises:
        ApiError: they do not.
    """
    check_stops(request.stops, "stop")
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options needs stream to be true", param="stream_options")
