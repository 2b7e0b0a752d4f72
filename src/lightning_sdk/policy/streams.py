"""A streamed answer over HTTP: server-sent events, closed at once when the client is gone."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lightning_sdk.policy.apis.surface import Api, Body
from lightning_sdk.policy.errors import ApiError, internal
from lightning_sdk.policy.harness_calls import Recording
from lightning_sdk.policy.service import Events

_log = logging.getLogger(__name__)


class EventStream(StreamingResponse):
    """The events of one answer."""

    def __init__(
        self,
        api: Api,
        first: Events,
        rest: AsyncGenerator[Events, None],
        recording: Recording,
        headers: Mapping[str, str],
    ) -> None:
        """Take them.

        Args:
            api: which writes them.
            first: those that are there.
            rest: the others; it has begun, and is closed here.
            recording: of the call.
            headers: of the response.
        """
        super().__init__(self._pieces(first), headers=headers, media_type="text/event-stream")
        self._api = api
        self._rest = rest
        self._recording = recording

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them. Whatever ends it, nothing of it goes on."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            try:
                await self._rest.aclose()
            finally:
                self._recording.finish("closed_early")

    async def _pieces(self, first: Events) -> AsyncGenerator[bytes, None]:
        try:
            yield self._piece(first)
            async for events in self._rest:
                yield self._piece(events)
        except ApiError as error:
            yield self._failure(error)
        except Exception as error:
            _log.exception("a stream failed")
            yield self._failure(internal(error))

    def _piece(self, events: Events) -> bytes:
        data = [orjson.dumps(body) for body in events.bodies]
        self._recording.streamed(data)
        piece = b"".join(map(self._framed, events.bodies, data))
        if not events.last:
            return piece
        self._recording.finish("ok")
        return piece + self._mark()

    def _failure(self, error: ApiError) -> bytes:
        body = self._api.refusal_event(error)
        data = orjson.dumps(body)
        self._recording.streamed([data])
        self._recording.finish("error", error)
        return self._framed(body, data) + self._mark()

    def _framed(self, body: Body, data: bytes) -> bytes:
        name = b"event: " + str(body["type"]).encode() + b"\n" if self._api.names_events else b""
        return name + b"data: " + data + b"\n\n"

    def _mark(self) -> bytes:
        return b"" if self._api.names_events else b"data: [DONE]\n\n"
