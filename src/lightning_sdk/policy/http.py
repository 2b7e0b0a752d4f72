"""What all routes of the endpoint share: bodies, tokens, JSON, and clients that go away."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lightning_sdk.policy.errors import ApiError, invalid, unauthorized

_MAX_BODY_BYTES = 32 << 20
# A client that sends so slowly holds memory for nothing.
_BODY_TIMEOUT_S = 60.0

_T = TypeVar("_T")


class ClientGoneError(Exception):
    """The client closed its connection."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which is cancelled when the client goes away first.

    Raises:
        ClientGoneError: it did.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def check_token(request: Request, token: str) -> None:
    """Refuse a request that does not carry this bearer token, or carry it as Anthropic's clients do, as x-api-key.

    Raises:
        ApiError: it does not.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = request.headers.get("x-api-key", "")
    if not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise unauthorized()


def check_content_type(request: Request) -> None:
    """Refuse a body that does not say it is JSON.

    Raises:
        ApiError: it does not.
    """
    # A web page can send other types to a loopback port without asking the browser; JSON it cannot.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise invalid(f"content-type is {kind or 'missing'}, expected application/json")


async def read_body(request: Request, most_bytes: int = _MAX_BODY_BYTES) -> bytes:
    """The whole body.

    Raises:
        ApiError: it is too large, or does not come.
        ClientGoneError: the client left before its end.
    """
    try:
        return await asyncio.wait_for(_receive(request, most_bytes), _BODY_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise ApiError(408, f"the body did not come within {_BODY_TIMEOUT_S:g} seconds") from None


async def _receive(request: Request, most_bytes: int) -> bytes:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > most_bytes:
                raise ApiError(413, f"the body is larger than {most_bytes} bytes", code="body_too_large")
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(body)


def json_response(
    body: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A body as JSON."""
    return Response(orjson.dumps(body), status, headers=headers, media_type="application/json")
