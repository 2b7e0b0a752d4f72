"""A bearer token on every RPC."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from lightning_sdk.addresses import bearer


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every RPC that does not carry the token.

    Raises:
        ConfigError: a token that no client could send.
    """

    def __init__(self, token: str) -> None:
        ((self._header, shown),) = bearer(token)
        self._expected = shown.encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See grpc.aio.ServerInterceptor."""
        shown = b""
        for name, value in handler_call_details.invocation_metadata or ():
            if name == self._header:
                shown = value.encode() if isinstance(value, str) else value
        if hmac.compare_digest(shown, self._expected):
            return await continuation(handler_call_details)
        # Of the streaming kind whatever the method is: it answers before the first message has come.
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "the collector asks for its token, which this request did not carry: set LIGHTNING_TOKEN",
    )
