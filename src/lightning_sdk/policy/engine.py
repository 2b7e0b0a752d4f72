"""What the endpoint needs of an engine: a tokenizer, and generation that several callers await at once.

`transformers_engine` is the one on torch, `upstream_engine` asks another server (vLLM).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from lightning_sdk.plugins import Probe

# "abort": its caller gave up before it was done.
FinishReason = Literal["stop", "length", "abort"]
# What log probabilities are of, in the words of a Tokens record.
LogprobsMode = Literal["processed", "raw"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar that the answer must follow: any JSON object, or JSON of a schema."""

    kind: Literal["json_object", "json_schema"]
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample, every value decided.

    The log probabilities of sampled tokens are of ``log_softmax(logits / temperature)`` over the whole
    vocabulary, before `top_p` cuts it; at temperature 0 (greedy) of ``log_softmax(logits)``.
    """

    temperature: float
    top_p: float
    # Choice i draws from a generator of its own, seeded by (seed, i), so that a seed repeats all choices. None, where
    # nobody asked for one: only for an engine that `seeds_itself`.
    seed: int | None
    max_tokens: int
    # Sampling ends with the token that completes one of them; the text ends before it.
    stop: tuple[str, ...] = ()
    # How many likeliest tokens to tell beside each sampled one.
    top_logprobs: int = 0
    # What else shapes the distribution, of those names that the engine `shapes`.
    shaping: Mapping[str, Any] = field(default_factory=dict)
    # Only for an engine that `constrains`.
    constraint: Constraint | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One sampled token, with the likeliest tokens at its place where they were asked for."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice gained. `text` is final: no stop string can begin in it any more."""

    choice: int
    tokens: tuple[SampledToken, ...]
    text: str
    finish_reason: FinishReason | None
    # Of the weights that sampled these tokens: all of them, so tokens around an update come in two deltas.
    policy_version: int


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is, in choices."""

    running: int
    waiting: int


class Tokenizer(Protocol):
    """A model's tokenizer with its chat template."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of these ids."""

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        """Messages and tools through the chat template, up to where the assistant's turn begins.

        Raises:
            ValueError: the template refuses them; the message says why.
        """

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text: special tokens are recognised, none are added."""

    def least_tokens(self, text: str) -> int:
        """No more than `encode(text)` has, found without the time that it takes; 0 where nothing is known."""


class Engine(Protocol):
    """Samples from one causal language model."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer together that the model can attend to."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""

    @property
    def policy_version(self) -> int:
        """Of the weights that sample now: 0 for what was loaded, larger with each update."""

    @property
    def load(self) -> Load:
        """How busy it is."""

    @property
    def problem(self) -> str | None:
        """Why it can answer nothing any more, and what to do; None while it can."""

    @property
    def seeds_itself(self) -> bool:
        """Whether it has random numbers of its own for requests without a seed."""

    @property
    def shapes(self) -> frozenset[str]:
        """Names of `SamplingParams.shaping` that it honours."""

    @property
    def constrains(self) -> bool:
        """Whether it can follow a `Constraint`."""

    def logprobs_mode(self, params: SamplingParams) -> LogprobsMode:
        """What the log probabilities of an answer are of."""

    def generate(self, prompt: Sequence[int], n: int, params: SamplingParams) -> AsyncGenerator[Delta, None]:
        """Sample `n` answers to a prompt; each choice's last delta has a finish reason.

        Closing the generator gives up what is not finished, and frees its places.

        Raises:
            ApiError: the queue is full, or the engine failed or is shutting down.
        """

    async def publish(
        self, weights: Path, version: int, *, probe: Probe | None, drain_timeout_s: float
    ) -> None:
        """Exchange the weights. When it returns, every choice that starts is sampled by the new ones.

        From the moment they are read no new choice starts. Those that run finish with the old weights; what
        still runs after `drain_timeout_s` goes on with the new ones, and its deltas say so. Nothing that was
        computed from the old weights (keys, values, prefixes) is used with the new ones. Publishes wait for each
        other. Cancelling does not take it back.

        Args:
            weights: a directory with safetensors, which is not needed afterwards.
            version: larger than `policy_version`, or the same once more.
            probe: what the new weights must compute.
            drain_timeout_s: how long running choices may keep the old weights.

        Raises:
            PublishError: they do not fit, or the probe differs. The old weights, and their version, serve on.
        """

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log probabilities at temperature 1 of `token_ids[1:]`, each after those before it.

        Raises:
            ApiError: the engine failed or is shutting down.
        """

    async def stop(self) -> None:
        """End: what still runs is refused, and whatever the engine holds is let go. In the loop that used it."""
