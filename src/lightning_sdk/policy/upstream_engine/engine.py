"""`engine.Engine` over another server: prompts go there as token ids, and come back as sampled ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from lightning_sdk.errors import PublishError
from lightning_sdk.plugins import Probe
from lightning_sdk.policy.engine import Delta, FinishReason, Load, LogprobsMode, SamplingParams, Tokenizer
from lightning_sdk.policy.errors import ApiError, queue_full, shutting_down
from lightning_sdk.policy.probing import check_probe, compare
from lightning_sdk.policy.sampling import SHAPING
from lightning_sdk.policy.stop_text import StoppableText
from lightning_sdk.policy.upstream_engine.client import UpstreamClient
from lightning_sdk.policy.upstream_engine.completions import (
    finish_reason,
    prompt_logprobs,
    request_body,
    sampled_tokens,
)
from lightning_sdk.policy.weight_files import check_same_tensors

_log = logging.getLogger(__name__)


class UpstreamEngine:
    """One model of an upstream server. All of its methods run in one event loop.

    The version of the weights is ours: nobody else may change them. Whoever asks the upstream directly is not
    held back while they are exchanged.
    """

    shapes = frozenset(SHAPING)
    constrains = True
    # Generators by request are slow in vLLM, and on a CPU those of prompts that it reads in pieces end it.
    seeds_itself = True

    def __init__(
        self,
        client: UpstreamClient,
        tokenizer: Tokenizer,
        *,
        model: str,
        weights: Path,
        context_length: int,
        vocabulary: int,
        raw_logprobs: bool,
        max_choices: int,
    ) -> None:
        """Take a server that `connect_engine` has looked at.

        Args:
            client: the server.
            tokenizer: of the model that it serves.
            model: how the server calls it.
            weights: the directory that it was loaded from.
            context_length: what it can attend to.
            vocabulary: how many tokens there are.
            raw_logprobs: it tells log probabilities before temperature.
            max_choices: that may run there and wait here together.
        """
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.policy_version = 0
        self.raw_logprobs = raw_logprobs
        self._client = client
        self._model = model
        self._weights = weights
        self.vocabulary = vocabulary
        self._max_choices = max_choices
        self._running = 0
        self._waiting = 0
        # Set while answers may start; cleared while weights are exchanged.
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._one_publish = asyncio.Lock()
        self.problem: str | None = None
        # How often weights went in that were taken out again; what sampled meanwhile is no version's.
        self._failed_exchanges = 0
        self._stopped = False

    @property
    def load(self) -> Load:
        """Choices that run upstream, and that wait here."""
        return Load(running=self._running, waiting=self._waiting)

    def logprobs_mode(self, params: SamplingParams) -> LogprobsMode:
        """See `engine.Engine.logprobs_mode`."""
        return "raw" if params.greedy or (self.raw_logprobs and params.temperature != 1) else "processed"

    async def generate(
        self, prompt: Sequence[int], n: int, params: SamplingParams
    ) -> AsyncGenerator[Delta, None]:
        """See `engine.Engine.generate`."""
        await self._admit(n)
        exchanges = self._failed_exchanges
        self._running += n
        self._idle.clear()
        try:
            async with aclosing(self._sample(prompt, n, params)) as deltas:
                async for delta in deltas:
                    if exchanges != self._failed_exchanges:
                        raise _spoilt()
                    yield delta
        finally:
            self._running -= n
            if not self._running:
                self._idle.set()

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """See `engine.Engine.score`."""
        answer = await self._client.complete(
            {
                "model": self._model,
                "prompt": token_ids,
                "max_tokens": 1,
                "temperature": 0,
                "prompt_logprobs": 0,
            }
        )
        return prompt_logprobs(answer, token_ids)

    async def publish(
        self, weights: Path, version: int, *, probe: Probe | None, drain_timeout_s: float
    ) -> None:
        """See `engine.Engine.publish`. The upstream reads `weights` itself, under the same path.

        `weights` must stay as long as they are served: they are what the next publish that fails goes back to.
        """
        async with self._one_publish:
            if version < self.policy_version:
                raise PublishError(
                    f"version {version} is older than {self.policy_version}, which is served: publish a later one"
                )
            if probe is not None:
                check_probe(probe, self.vocabulary, self.context_length)
            # Here, because a load that fails half-way may end the upstream.
            await asyncio.to_thread(check_same_tensors, weights, self._weights)
            self._open.clear()
            try:
                await self._exchange(weights, probe, drain_timeout_s)
                self._weights, self.policy_version = weights, version
            except ApiError as error:
                raise PublishError(f"{error.message}: it must run with VLLM_SERVER_DEV_MODE=1") from error
            finally:
                self._open.set()

    async def stop(self) -> None:
        """See `engine.Engine.stop`."""
        self._stopped = True
        self._open.set()
        await self._client.close()

    async def _admit(self, n: int) -> None:
        """Wait until answers may start."""
        if self._running + self._waiting + n > self._max_choices:
            raise queue_full(self._max_choices)
        self._waiting += n
        try:
            await self._open.wait()
        finally:
            self._waiting -= n
        if self._stopped:
            raise shutting_down()
        if self.problem is not None:
            raise ApiError(503, self.problem, code="engine_error", kind="server_error")

    async def _sample(
        self, prompt: Sequence[int], n: int, params: SamplingParams
    ) -> AsyncGenerator[Delta, None]:
        # Greedy choices are all the same, and vLLM refuses to make several.
        asked = 1 if params.greedy else n
        texts = [StoppableText(self.tokenizer, params.stop) for _ in range(asked)]
        done: set[int] = set()
        body = request_body(self._model, prompt, asked, params)
        async with aclosing(self._client.stream(body)) as events:
            async for event in events:
                for part in event.get("choices") or ():
                    index = part.get("index", 0)
                    if index in done or not 0 <= index < asked:
                        continue
                    tokens, reason = sampled_tokens(part, params.top_logprobs), finish_reason(part)
                    text, reason = _text(texts[index], [token.id for token in tokens], reason)
                    if reason is not None:
                        done.add(index)
                    for choice in range(n) if params.greedy else (index,):
                        yield Delta(choice, tokens, text, reason, self.policy_version)
                if len(done) == asked:
                    return

    async def _exchange(self, weights: Path, probe: Probe | None, drain_timeout_s: float) -> None:
        """Have the upstream load weights; where they are wrong, those before them once more."""
        before = None if probe is None else [await self.score(ids) for ids in probe.token_ids]
        try:
            await asyncio.wait_for(self._idle.wait(), drain_timeout_s)
        except asyncio.TimeoutError:
            _log.info("%d answers go on over new weights", self._running)
        await self._pause()  # where it is refused, nothing has changed
        try:
            await self._load(weights)
            if probe is not None:
                compare(probe, [await self.score(ids) for ids in probe.token_ids])
        except (PublishError, ApiError):
            self._failed_exchanges += 1
            await self._go_back(probe, before)
            raise

    async def _pause(self) -> None:
        """Have the upstream compute nothing, and keep what it holds."""
        await self._client.control("/pause?mode=keep")

    async def _load(self, weights: Path) -> None:
        """Load weights while it is paused, and go on; nothing stays that was computed from others."""
        try:
            await self._client.control(
                "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}}
            )
            # Running answers too compute anew what they hold.
            await self._client.control("/reset_prefix_cache?reset_running_requests=true")
        finally:
            await self._client.control("/resume")

    async def _go_back(self, probe: Probe | None, before: list[list[float]] | None) -> None:
        try:
            await self._pause()
            await self._load(self._weights)
            if probe is not None and before is not None:
                again = Probe(token_ids=probe.token_ids, logprobs=before, tolerance=probe.tolerance)
                compare(again, [await self.score(ids) for ids in probe.token_ids])
        except (PublishError, ApiError) as error:
            self.problem = (
                "the upstream's weights are no version's since a publish failed: restart it and this"
            )
            _log.error("the weights before are not back: %s", error)


def _text(
    text: StoppableText, ids: Sequence[int], reason: FinishReason | None
) -> tuple[str, FinishReason | None]:
    """What new ids add to a choice's text, and why it ends, if it does."""
    added = "".join(map(text.feed, ids))
    if reason is not None and not text.stopped:
        added += text.flush()
    return added, "stop" if text.stopped else reason


def _spoilt() -> ApiError:
    return ApiError(
        503,
        "new weights failed while this answer ran, and part of it was sampled by them: try again",
        code="engine_error",
        kind="server_error",
        headers={"retry-after": "1"},
    )
