"""HTTP to the upstream server, with its failures as the endpoint's own errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import orjson

from lightning_sdk.policy.errors import ApiError, invalid

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S: Final = 10.0
_MAX_EVENT_BYTES: Final = 64 << 20
_DONE: Final = b"[DONE]"


class UpstreamClient:
    """One upstream server, in one event loop."""

    def __init__(self, base_url: str, token: str | None, *, silence_timeout_s: float) -> None:
        """Connect to nothing yet.

        Args:
            base_url: of its API, with `/v1`.
            token: its API key, where it has one.
            silence_timeout_s: how long it may say nothing while it works.
        """
        self._api_url = base_url.rstrip("/")
        self._root_url = self._api_url.removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {token}"} if token is not None else {}
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=silence_timeout_s
        )
        self._session: aiohttp.ClientSession | None = None

    async def models(self) -> list[dict[str, Any]]:
        """Its models, as `GET /v1/models` lists them.

        Raises:
            ApiError: it cannot be reached, or answers something else.
        """
        async with self._request("GET", f"{self._api_url}/models") as response:
            listed = (await _json(response)).get("data")
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise _bad_gateway("the upstream's /v1/models lists none")
        return listed

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """`POST /v1/completions`, not streamed.

        Raises:
            ApiError: it cannot be reached, or refused.
        """
        async with self._request("POST", f"{self._api_url}/completions", body) as response:
            return await _json(response)

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of `POST /v1/completions`. Closing it hangs up, which ends the upstream's work.

        Raises:
            ApiError: it cannot be reached, refused, failed, or broke off.
        """
        asked = {**body, "stream": True}
        async with self._request("POST", f"{self._api_url}/completions", asked) as response:
            async for data in _events(response.content):
                if data == _DONE:
                    return
                event = _object(data)
                if "error" in event:
                    raise _bad_gateway(f"the upstream failed: {_message(event)}")
                yield event
        raise _bad_gateway("the upstream broke off in the middle of an answer")

    async def control(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """`POST` to one of its routes outside of the API.

        Raises:
            ApiError: it cannot be reached, or refused.
        """
        async with self._request("POST", self._root_url + path, body) as response:
            await response.read()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            # No limit of connections: how many answers run is decided elsewhere. No proxy, cookies or redirection.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                headers=self._headers,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=1 << 20,
            )
        headers = {"content-type": "application/json"} if body is not None else None
        data = orjson.dumps(body) if body is not None else None
        try:
            async with self._session.request(
                method, url, data=data, headers=headers, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise await _refusal(response)
                yield response
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise _bad_gateway(f"the upstream does not answer ({type(error).__name__})") from error


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of each server-sent event; lines that are none are passed over."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _MAX_EVENT_BYTES:
            raise _bad_gateway("an event of the upstream is too large")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


async def _json(response: aiohttp.ClientResponse) -> dict[str, Any]:
    return _object(await response.read())


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise _bad_gateway("the upstream's answer is no JSON object")
    return value


async def _refusal(response: aiohttp.ClientResponse) -> ApiError:
    """What the upstream's refusal means to our caller."""
    try:
        told = _message(orjson.loads(await response.content.read(1 << 16)))
    except orjson.JSONDecodeError:
        told = response.reason or "no reason given"
    if response.status in (400, 422):
        return invalid(f"the upstream refused the request: {told}")
    if response.status in (429, 503):
        return ApiError(
            response.status,
            f"the upstream takes no more requests now: {told}",
            code="queue_full" if response.status == 429 else "engine_error",
            kind="rate_limit_error" if response.status == 429 else "server_error",
            headers={"retry-after": response.headers.get("retry-after", "1")},
        )
    return _bad_gateway(f"the upstream refused ({response.status}): {told}")


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    told = error.get("message", "") if isinstance(error, dict) else error
    return " ".join(str(told).split())[:300] or "no reason given"


def _bad_gateway(message: str) -> ApiError:
    _log.error("%s", message)
    return ApiError(502, message, code="engine_error", kind="server_error")
