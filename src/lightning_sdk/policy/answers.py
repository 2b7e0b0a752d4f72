"""An answer of any shape from its prompt to its record: chat completions, and whatever else is put on top.

Nothing here knows HTTP or a request's JSON. A surface reads its request, renders a prompt, `start`s an answer,
takes its `deltas`, and has it `record`ed before the last byte goes out.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client import Histogram

from lightning_sdk.policy.choices import AnswerHead, Choice
from lightning_sdk.policy.engine import Delta, SamplingParams
from lightning_sdk.policy.errors import context_exceeded
from lightning_sdk.policy.metrics import Metrics
from lightning_sdk.policy.policies import Policies, Policy
from lightning_sdk.policy.recording import AnswerStart
from lightning_sdk.policy.sampling import SamplingRequest, decide_sampling
from lightning_sdk.policy.tool_prompt import ParsedText

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTags:
    """What a call says of itself beside its body; from headers, so bytes from outside."""

    call_id: str
    policy: str | None = None
    split: str | None = None
    # The client sent it here in place of another model's endpoint.
    routed: bool = False
    # Whoever calls may name a model that is not served: the default answers then.
    any_model: bool = False


@dataclass(slots=True)
class Answer:
    """One answer in the making. `choices` fill while `Answering` runs it."""

    policy: Policy
    head: AnswerHead
    start: AnswerStart
    prompt: list[int]
    asked: SamplingRequest
    params: SamplingParams
    uses_tools: bool
    choices: list[Choice] = field(default_factory=list)
    # Of the policy, at the first and at the last token that was sampled; None before the first.
    versions: tuple[int, int] | None = None
    recorded: bool = False

    def parse(self, choice: Choice) -> ParsedText:
        """A choice's text, taken apart where it may hold tool calls."""
        return self.policy.format.parse(choice.text) if self.uses_tools else ParsedText(choice.text)


class Answering:
    """Runs answers of all policies."""

    def __init__(self, policies: Policies, metrics: Metrics | None = None) -> None:
        self.policies = policies
        self.metrics = metrics or Metrics(policies)
        # One thread, because no tokenizer promises to be safe in several.
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="lightning-policy-prepare")

    async def prepare(self, work: Callable[[], _T]) -> _T:
        """Run what comes before sampling: reading, rendering and tokenising megabytes takes seconds.

        A thread does it, so that the answers that run meanwhile go on.
        """
        return await asyncio.get_running_loop().run_in_executor(self._preparing, work)

    def start(
        self,
        tags: CallTags,
        policy: Policy,
        prompt: str | Sequence[int],
        asked: SamplingRequest,
        *,
        uses_tools: bool = False,
        id_prefix: str,
    ) -> Answer:
        """Decide all that can be decided before sampling. For the thread of `prepare`.

        Args:
            tags: who calls.
            policy: who answers.
            prompt: its rendered text, or its token ids.
            asked: what the request says of sampling.
            uses_tools: the answer may call tools.
            id_prefix: of the response's id.

        Raises:
            ApiError: too many tokens, or sampling that the engine cannot do.
        """
        ids = self._encode(policy, prompt, asked) if isinstance(prompt, str) else list(prompt)
        params = decide_sampling(asked, policy, tags.split, len(ids))
        response_id = f"{id_prefix}{os.urandom(16).hex()}"
        return Answer(
            policy=policy,
            head=AnswerHead(response_id, int(time.time()), policy.name),
            start=policy.recorder.begin(tags.call_id, response_id),
            prompt=ids,
            asked=asked,
            params=params,
            uses_tools=uses_tools,
            choices=[Choice(index) for index in range(asked.n or 1)],
        )

    async def deltas(self, answer: Answer) -> AsyncGenerator[Delta, None]:
        """The engine's deltas, once added to the answer. One given up half-way is recorded as it is."""
        started_s = time.monotonic()
        outcome = "aborted"
        try:
            generation = answer.policy.engine.generate(answer.prompt, len(answer.choices), answer.params)
            async with aclosing(generation) as deltas:
                async for delta in deltas:
                    if answer.versions is None:
                        self._observe(self.metrics.first_token_seconds, answer, started_s)
                    _add(answer, delta)
                    yield delta
            outcome = "ok"
        except Exception:
            outcome = "failed"
            raise
        finally:
            unfinished = not all(choice.finish_reason for choice in answer.choices)
            if unfinished and any(choice.tokens for choice in answer.choices):
                self.record(answer)
            self._count(answer, outcome, started_s)

    async def finish(self, answer: Answer) -> None:
        """Run an answer that is not streamed to its end."""
        async with aclosing(self.deltas(answer)) as deltas:
            async for _ in deltas:
                pass

    def record(self, answer: Answer) -> None:
        """Write what the engine knows of an answer, once; before its last byte is sent."""
        if answer.recorded or answer.versions is None:
            return
        answer.recorded = True
        answer.policy.recorder.write(
            answer.start,
            prompt=answer.prompt,
            choices=answer.choices,
            asked=answer.asked,
            params=answer.params,
            logprobs_mode=answer.policy.engine.logprobs_mode(answer.params),
            versions=answer.versions,
        )

    def _count(self, answer: Answer, outcome: str, started_s: float) -> None:
        name = answer.policy.name
        self.metrics.answers.labels(name, outcome).inc()
        self.metrics.tokens.labels(name, "prompt").inc(len(answer.prompt))
        sampled = sum(len(choice.tokens) for choice in answer.choices)
        self.metrics.tokens.labels(name, "sampled").inc(sampled)
        if outcome == "ok":
            self._observe(self.metrics.answer_seconds, answer, started_s)

    def _observe(self, histogram: Histogram, answer: Answer, started_s: float) -> None:
        histogram.labels(answer.policy.name).observe(time.monotonic() - started_s)

    def _encode(self, policy: Policy, text: str, asked: SamplingRequest) -> list[int]:
        tokenizer, context = policy.engine.tokenizer, policy.engine.context_length
        least = tokenizer.least_tokens(text)
        if least > context:
            raise context_exceeded(context, least, asked.max_tokens, at_least=True)
        return tokenizer.encode(text)


def _add(answer: Answer, delta: Delta) -> None:
    choice = answer.choices[delta.choice]
    choice.tokens.extend(delta.tokens)
    choice.text += delta.text
    choice.finish_reason = delta.finish_reason
    first, _ = answer.versions or (delta.policy_version, 0)
    answer.versions = (first, delta.policy_version)
    if delta.finish_reason == "stop" and answer.parse(choice).calls:
        choice.finish_reason = "tool_calls"
