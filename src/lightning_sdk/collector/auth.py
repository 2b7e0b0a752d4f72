"""A bearer token on every RPC."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

_HEADER = "authorization"


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata with which a client shows its token."""
    return ((_HEADER, f"Bearer {token}"),) if token else ()


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every RPC that does not carry the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See grpc.aio.ServerInterceptor."""
        shown = b""
        for name, value in handler_call_details.invocation_metadata or ():
            if name == _HEADER:
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
