"""HTTP clients of our own that send routed calls, in the place of the agent's.

What the agent's HTTP client would add to a request (headers, cookies, an `auth=`, event hooks, a transport of its
own, redirects) is nothing that this code sees or could take off: so the agent's HTTP client does not take part.
Each of them gets a sender beside it, of the same library (httpx or httpx2), which lives and is closed with it.

A sender makes the request anew, from address, headers and body alone, and sends that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lightning_sdk.errors import RoutingError

_LIBRARIES: Final = ("httpx", "httpx2")
# As the SDKs themselves have them.
_MAX_CONNECTIONS: Final = 1000
_MAX_IDLE_CONNECTIONS: Final = 100
# An endpoint on this machine is reached without a proxy, whatever the environment says.
_DIRECT: Final = ("all://127.0.0.1", "all://localhost", "all://[::1]")


@dataclass(frozen=True, slots=True)
class Readdressed:
    """What is sent instead of the agent's request."""

    url: str
    headers: Mapping[str, str]
    body: bytes


# From the request that the SDK built; it raises RoutingError where that must not be sent.
Readdress = Callable[[Any], Readdressed]


class Senders:
    """The senders of one SDK, by the HTTP client beside which they stand."""

    def __init__(self, readdress: Readdress) -> None:
        self._readdress = readdress
        self._lock = threading.Lock()
        # By client, then by event loop: connections belong to the loop in which they were made.
        self._senders: Any = weakref.WeakKeyDictionary()
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def _after_fork_in_child(self) -> None:
        # The connections are the parent's; dropped, not closed, for closing may speak on them.
        self._lock = threading.Lock()
        self._senders = weakref.WeakKeyDictionary()

    def beside(self, client: Any) -> Any:
        """The sender beside an HTTP client of the agent's.

        Raises:
            RoutingError: it is no client of httpx or httpx2.
        """
        base = _base_of(client)
        # Without a loop (a sync client, or another async library) the client stands for it.
        key = (_running_loop() if base.__name__ == "AsyncClient" else None) or client
        with self._lock:
            by_loop = self._senders.get(client)
            if by_loop is None:
                by_loop = self._senders[client] = weakref.WeakKeyDictionary()
            sender = by_loop.get(key)
            if sender is None:
                # Connections hold their loop, so that it would stay as long as the client.
                for loop in [each for each in by_loop if each is not client and each.is_closed()]:
                    del by_loop[loop]
                sender = by_loop[key] = _make(base, self._readdress)
            return sender

    def close(self, client: Any) -> None:
        """Close what stands beside a client that was closed."""
        for sender in self._take(client):
            sender.close()

    async def aclose(self, client: Any) -> None:
        """`close`, of an asynchronous client: what belongs to this event loop."""
        for sender in self._take(client):
            await sender.aclose()

    def _take(self, client: Any) -> list[Any]:
        loop = _running_loop()
        with self._lock:
            by_loop = self._senders.get(client) or {}
            keys = [key for key in (loop, client) if key is not None]
            return [sender for key in keys if (sender := by_loop.pop(key, None)) is not None]


def _running_loop() -> Any:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _base_of(client: Any) -> Any:
    for base in type(client).__mro__:
        if base.__module__.partition(".")[0] in _LIBRARIES and base.__name__ in ("Client", "AsyncClient"):
            return base
    raise RoutingError(
        f"a call of a routed agent cannot be sent beside the HTTP client {type(client).__qualname__}: expected "
        "one of httpx or httpx2; leave http_client out, or the agent out of agents"
    )


def _make(base: Any, readdress: Readdress) -> Any:
    library = sys.modules[base.__module__.partition(".")[0]]
    return _class_of(base, readdress)(
        verify=_tls(library),
        mounts=dict.fromkeys(_DIRECT),
        limits=library.Limits(
            max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_IDLE_CONNECTIONS
        ),
    )


@functools.lru_cache
def _tls(library: types.ModuleType) -> Any:
    """Made once: it takes long."""
    return library.create_ssl_context()


@functools.lru_cache
def _class_of(base: Any, readdress: Readdress) -> Any:
    def anew(request: Any) -> Any:
        told = readdress(request)
        # No header of a client is merged into a request that is made this way; host and length are added.
        return type(request)(
            request.method,
            told.url,
            headers=dict(told.headers),
            content=told.body,
            extensions={key: value for key, value in request.extensions.items() if key == "timeout"},
        )

    # The rest of what the SDK says about sending is about the agent's own server: its `auth`, its redirects.
    # The response tells of the request that the agent made.
    if base.__name__ == "Client":

        class Sender(base):  # type: ignore[misc]
            def send(self, request: Any, *, stream: bool = False, **_: Any) -> Any:
                response = super().send(anew(request), stream=stream, auth=None, follow_redirects=False)
                response.request = request
                return response

            def __del__(self) -> None:
                with contextlib.suppress(Exception):
                    self.close()

        return Sender

    class AsyncSender(base):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            loop = _running_loop()
            self._lightning_loop = None if loop is None else weakref.ref(loop)

        async def send(self, request: Any, *, stream: bool = False, **_: Any) -> Any:
            response = await super().send(anew(request), stream=stream, auth=None, follow_redirects=False)
            response.request = request
            return response

        def __del__(self) -> None:
            with contextlib.suppress(Exception):
                loop = _running_loop()
                if loop is not None and self._lightning_loop is not None and self._lightning_loop() is loop:
                    loop.create_task(self.aclose())

    return AsyncSender
