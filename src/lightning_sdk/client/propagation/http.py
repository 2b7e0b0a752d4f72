"""HTTP: a rollout goes with a request whose headers were given to `inject`, and goes on where `extract` is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final

from lightning_sdk.client import faults, scope

HEADER: Final = "x-lightning-context"


def inject(headers: MutableMapping[str, str] | None = None) -> MutableMapping[str, str]:
    """Add the present rollout to the headers of a request; outside any rollout they stay as they are.

    What the service does in `with extract(request.headers):` then belongs to this rollout, and to the agent that
    asked for it. No setting and no secret is in the header.

    Args:
        headers: changed, and returned. Default: a new dict.
    """
    headers = {} if headers is None else headers
    with faults.guard("inject"):
        current = scope.current()
        if current is not None:
            from lightning_sdk.client.propagation.context import encode

            text = encode(current)
            if text is not None:
                headers[HEADER] = text
    return headers


class extract:  # noqa: N801 - used as a statement: `with extract(request.headers):`
    """Work for the rollout that the headers of a request name: `with extract(headers):`, or `async with`.

    Without such a header, or with one that cannot be read (`contexts_refused` counts those), the block runs as
    without this. Call it only for callers that you trust to say which rollout they work for.

    Args:
        headers: a mapping, or pairs of name and value, as text or as bytes; upper and lower case are one.
    """

    __slots__ = ("_before", "_headers", "_scope")

    def __init__(self, headers: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        self._headers = headers
        self._scope: scope.Scope | None = None
        self._before: scope.Scope | None = None

    def __enter__(self) -> None:
        with faults.guard("extract"):
            text = _value(self._headers)
            if text is not None:
                self._scope = _scope_of(text)
        if self._scope is not None:
            self._before = scope.enter(self._scope)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._scope is not None:
            scope.leave(self._scope, self._before)
            self._scope = self._before = None

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


def _value(headers: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> str | None:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    for name, value in pairs:
        if _text(name).lower() == HEADER:
            return _text(value)
    return None


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _scope_of(text: str) -> scope.Scope | None:
    from dataclasses import replace

    from lightning_sdk.client.propagation.context import decode, scope_of
    from lightning_sdk.errors import WireError

    try:
        # Settings come from processes of our own only.
        return scope_of(replace(decode(text), settings={}))
    except WireError as error:
        faults.pass_on(error)
        faults.count("contexts_refused")
        faults.warn(f"a header {HEADER} is ignored: {error}"[:500])
        return None
