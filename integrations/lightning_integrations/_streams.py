"""The responses of a model's SDK whose bodies are read after the call has returned, and how each comes to its end.

`OpenResponse` follows one such response. There are two ways to see what the agent reads from it:

* the SDK builds a `Stream`: `StreamClasses` derives a class from the one that was asked for, which shows each
  server-sent event as it is decoded. Nothing is parsed or copied.
* the agent may read the response by itself (`with_streaming_response`, `with_raw_response` of a stream): the
  bytes that `iter_bytes` yields are kept until a `Stream` is built after all. Every reading method of the
  response goes through `iter_bytes`, all but `iter_raw`: what is read through that one is not seen.

The ends: exhausted or `[DONE]` (ok), an exception (error, cancelled), closed by its consumer (closed_early),
collected (abandoned). Hooks that an instance needs hang on that instance, and go when it ends.
"""

from __future__ import annotations

import threading
import types
import typing
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_sdk.plugins import CallRecording
    from lightning_sdk.records import OutcomeName

# Under this name an open response carries its OpenResponse, for the stream that the SDK builds on it.
_OPEN = "_lightning_open"
_DONE = "[DONE]"

# Takes an error of our own: `Recorder.fault`.
Fault = Callable[[str, Exception], None]

_shown_classes: dict[Any, type | None] = {}


def outcome_of(error: BaseException) -> OutcomeName:
    """How a call ended that `error` left: cancellations and interrupts are no `Exception`."""
    if isinstance(error, GeneratorExit):  # a coroutine that was dropped while it waited
        return "abandoned"
    return "error" if isinstance(error, Exception) else "cancelled"


class _Ending:
    """The one end of a response. Never reaches the response, whose finalizer holds it."""

    def __init__(self, recording: CallRecording, fault: Fault) -> None:
        self.recording = recording
        self.fault = fault
        # Bytes that were read, where no stream shows them as events, and what finds the events in them.
        self.chunks: list[bytes] | None = None
        self.split_events: Callable[[bytes], Iterable[str]] | None = None
        self._once = threading.Lock()

    def finish(self, outcome: OutcomeName, error: BaseException | None = None) -> bool:
        """End the recording; False if it has ended. Never waits: it may be called by a garbage collection."""
        if not self._once.acquire(blocking=False):
            return False
        try:
            outcome = self._hand_over(outcome)
        except Exception as error_of_ours:
            self.fault("model response", error_of_ours)
        finally:
            self.recording.finish(outcome, error)
        return True

    def _hand_over(self, outcome: OutcomeName) -> OutcomeName:
        """Record the kept bytes. Returns "ok" where they say that nothing was left to read."""
        chunks, self.chunks = self.chunks, None
        if chunks is None:
            return outcome
        body = b"".join(chunks)
        if self.split_events is None:
            if outcome == "ok":
                self.recording.received(body)
            return outcome
        data = ""
        for data in self.split_events(body):
            self.recording.event(data)
        return "ok" if data.startswith(_DONE) and outcome in ("closed_early", "abandoned") else outcome


class OpenResponse:
    """A response whose body is still to be read.

    Args:
        response: of httpx or httpx2.
        recording: gets events or body, and `finish` exactly once.
        fault: gets our own errors.
        is_async: which half of the methods of `response` is used.
    """

    def __init__(self, response: Any, recording: CallRecording, fault: Fault, *, is_async: bool) -> None:
        self.reading = False
        self._response = response
        self._is_async = is_async
        self.fault = fault
        self._ending = _Ending(recording, fault)
        # A finalizer, not __del__: when the cycle of a stream and its generator is collected, it runs before
        # the generator's own clean-up closes the response.
        self._finalizer = weakref.finalize(response, self._ending.finish, "abandoned")
        setattr(response, _OPEN, self)
        setattr(response, self._close_name, self._aclose if is_async else self._close)

    @property
    def _close_name(self) -> str:
        return "aclose" if self._is_async else "close"

    @property
    def _iter_name(self) -> str:
        return "aiter_bytes" if self._is_async else "iter_bytes"

    def keep_body(self, split_events: Callable[[bytes], Iterable[str]] | None) -> None:
        """Keep the bytes as they are read. `split_events` finds the events in them; None: it is no stream."""
        self._ending.chunks = []
        self._ending.split_events = split_events
        setattr(self._response, self._iter_name, self._aiter_bytes if self._is_async else self._iter_bytes)

    def leave_body(self) -> None:
        """A stream shows the events from now on."""
        self._ending.chunks = None
        self._forget(_OPEN, self._iter_name)

    def event(self, event: Any) -> Any:
        """Record one server-sent event and give it back."""
        try:
            data = event.data
            self._ending.recording.event(data)
            if data.startswith(_DONE):
                self.finish("ok")
        except Exception as error:
            self.fault("model stream", error)
        return event

    def finish(self, outcome: OutcomeName, error: BaseException | None = None) -> None:
        """The response has ended, in whatever thread; the first end counts."""
        if self._ending.finish(outcome, error):
            self._finalizer.detach()
            self._forget(_OPEN, self._close_name, self._iter_name)

    def _forget(self, *names: str) -> None:
        for name in names:
            vars(self._response).pop(name, None)

    def _closed(self) -> None:
        # SDK and httpx close a response themselves at its end or after an error, while somebody reads:
        # the reader then says which it was.
        if not self.reading:
            self.finish("closed_early")

    def _close(self) -> None:
        try:
            type(self._response).close(self._response)
        finally:
            self._closed()

    async def _aclose(self) -> None:
        try:
            await type(self._response).aclose(self._response)
        finally:
            self._closed()

    def _iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        return _Reading(type(self._response).iter_bytes(self._response, chunk_size), self, self._keep)

    def _aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        return _AsyncReading(type(self._response).aiter_bytes(self._response, chunk_size), self, self._keep)

    def _keep(self, chunk: bytes) -> None:
        if self._ending.chunks is not None:
            self._ending.chunks.append(chunk)


def _ignore(_: Any) -> None:
    pass


class _Reading(Iterator[Any]):
    """An iterator over an open response, which learns from it how it ends.

    No generator: those have clean-up of their own. Everything else (`close`) is the iterator's underneath.
    """

    def __init__(self, items: Any, opened: OpenResponse, keep: Callable[[Any], None] = _ignore) -> None:
        self._items = items
        self._opened = opened
        self._keep = keep

    def __next__(self) -> Any:
        opened = self._opened
        opened.reading = True
        try:
            item = self._items.__next__()
            self._keep(item)
            return item
        except StopIteration:
            opened.finish("ok")
            raise
        except BaseException as error:
            opened.finish(outcome_of(error), error)
            raise
        finally:
            opened.reading = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._items, name)


class _AsyncReading(AsyncIterator[Any]):
    """`_Reading` of an asynchronous iterator."""

    def __init__(self, items: Any, opened: OpenResponse, keep: Callable[[Any], None] = _ignore) -> None:
        self._items = items
        self._opened = opened
        self._keep = keep

    async def __anext__(self) -> Any:
        opened = self._opened
        opened.reading = True
        try:
            item = await self._items.__anext__()
            self._keep(item)
            return item
        except StopAsyncIteration:
            opened.finish("ok")
            raise
        except BaseException as error:
            opened.finish(outcome_of(error), error)
            raise
        finally:
            opened.reading = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._items, name)


class _AsyncMap(AsyncIterator[Any]):
    """`map` over an asynchronous iterator."""

    def __init__(self, function: Callable[[Any], Any], items: Any) -> None:
        self._function = function
        self._items = items

    async def __anext__(self) -> Any:
        return self._function(await self._items.__anext__())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._items, name)


class _ShownStream:
    """Before the SDK's `Stream` in a derived class."""

    _lightning: OpenResponse | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _follow(self, _Reading)

    def _iter_events(self) -> Iterator[Any]:
        events: Iterator[Any] = super()._iter_events()  # type: ignore[misc]
        return events if self._lightning is None else map(self._lightning.event, events)

    def close(self) -> None:
        if self._lightning is not None:
            self._lightning.finish("closed_early")
        super().close()  # type: ignore[misc]


class _ShownAsyncStream:
    """Before the SDK's `AsyncStream` in a derived class."""

    _lightning: OpenResponse | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _follow(self, _AsyncReading)

    def _iter_events(self) -> AsyncIterator[Any]:
        events: AsyncIterator[Any] = super()._iter_events()  # type: ignore[misc]
        return events if self._lightning is None else _AsyncMap(self._lightning.event, events)

    async def close(self) -> None:
        if self._lightning is not None:
            self._lightning.finish("closed_early")
        await super().close()  # type: ignore[misc]


def _follow(stream: Any, reading: type[_Reading] | type[_AsyncReading]) -> None:
    """Bind a new stream to its open response. A second stream on one response is bound to nothing."""
    opened: OpenResponse | None = getattr(getattr(stream, "response", None), _OPEN, None)
    if opened is None:
        return
    try:
        # First: some SDKs make their iterator from a copy of the stream.
        stream._lightning = opened
        stream._iterator = reading(stream._iterator, opened)
        opened.leave_body()
    except Exception as error:
        opened.fault("model stream", error)


@dataclass(frozen=True, slots=True)
class StreamClasses:
    """`Stream` and `AsyncStream` of one SDK."""

    plain: Any
    asynchronous: Any

    def shown(self, base: Any) -> type | None:
        """A class that behaves and looks like `base` and shows its events; one for each `base`.

        Args:
            base: `Stream[Chunk]`, `AsyncStream[Chunk]`, or a class derived from one of those.

        Returns:
            None where none can be derived: no base, or a generic class of the user's, whose argument the SDK
            finds in no further class.
        """
        try:
            return _shown_classes[base]
        except KeyError:
            derived = _shown_classes[base] = self._derive(base)
            return derived

    def _derive(self, base: Any) -> type | None:
        origin = typing.get_origin(base)
        if origin not in (None, self.plain, self.asynchronous):
            return None
        plain = origin or base
        if not isinstance(plain, type) or not issubclass(plain, (self.plain, self.asynchronous)):
            return None
        if issubclass(plain, (_ShownStream, _ShownAsyncStream)):
            return plain
        shown = _ShownAsyncStream if issubclass(plain, self.asynchronous) else _ShownStream
        names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
        derived = types.new_class(
            plain.__name__, (shown, base), {}, lambda namespace: namespace.update(names)
        )
        if origin is not None:
            # Where the SDK looks for the type of the chunks; it expects nothing else there.
            derived.__orig_bases__ = (base,)  # type: ignore[attr-defined]
        return derived
