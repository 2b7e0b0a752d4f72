"""One call from request to answer, whole or as a stream, recorded before its last byte is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from lightning_sdk.policy.answers import Answer, Answering, CallTags
from lightning_sdk.policy.apis.surface import Api, Asked, Body
from lightning_sdk.policy.metrics import Metrics
from lightning_sdk.policy.policies import Policies


@dataclass(frozen=True, slots=True)
class Exchange:
    """What was asked, and its answer in the making."""

    asked: Asked
    answer: Answer


@dataclass(frozen=True, slots=True)
class Events:
    """Some events of a stream. After the last ones the answer is recorded, and nothing follows."""

    bodies: list[Body]
    last: bool


class Service:
    """Answers calls of every API."""

    def __init__(self, policies: Policies, metrics: Metrics) -> None:
        self._answering = Answering(policies, metrics)

    async def begin(self, api: Api, body: bytes, tags: CallTags) -> Exchange:
        """Decide all that can be decided before sampling.

        Raises:
            ApiError: a request that is none or asks for what is not implemented, another model, messages
                that the template refuses, or too many tokens.
        """
        return await self._answering.prepare(lambda: self._prepare(api, body, tags))

    def _prepare(self, api: Api, body: bytes, tags: CallTags) -> Exchange:
        asked = api.read(body)
        policy = self._answering.policies.get(
            tags.policy, asked.model, routed=tags.routed, any_model=tags.any_model
        )
        answer = self._answering.start(
            tags,
            policy,
            asked.prompt(policy),
            asked.sampling(),
            uses_tools=asked.uses_tools,
            id_prefix=api.id_prefix,
        )
        return Exchange(asked, answer)

    async def complete(self, exchange: Exchange) -> Body:
        """The body of an answer that is not streamed."""
        answer = exchange.answer
        await self._answering.finish(answer)
        body = exchange.asked.whole(answer)
        self._answering.record(answer)
        return body

    async def stream(self, exchange: Exchange) -> AsyncGenerator[Events, None]:
        """The events of an answer that is streamed. The last finish reason comes after the record."""
        answer, writer = exchange.answer, exchange.asked.writer(exchange.answer)
        opened = False
        async with aclosing(self._answering.deltas(answer)) as deltas:
            async for delta in deltas:
                # Not before the first token, so that a full queue still gets a status of its own.
                bodies = [] if opened else writer.begin()
                opened = True
                bodies += writer.add(delta)
                last = all(choice.finish_reason for choice in answer.choices)
                if last:
                    self._answering.record(answer)
                    bodies += writer.end()
                if bodies:
                    yield Events(bodies, last)
