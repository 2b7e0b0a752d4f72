"""Records the calls of the OpenAI SDK: request and response as they were on the wire.

All shapes of calls (create, parse, stream helpers, raw responses; sync and async) meet in a few methods:

* `SyncAPIClient.request`, `AsyncAPIClient.request`: one logical call, retries included;
* `BaseClient._build_request`: each HTTP attempt, with its exact bytes and final URL;
* `SyncAPIClient._process_response`, `AsyncAPIClient._process_response`: the answer of the one that succeeded;
  an attempt that the SDK repeats is only counted.

Bodies that are read later are followed by `_openai_streams`. The outcome is that of the model's call: a whole
answer is "ok" even where the SDK then fails to parse it for the agent.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from lightning_integrations._openai_streams import OpenResponse, outcome_of, stream_class
from lightning_integrations._patches import Installation, Target
from lightning_sdk.errors import PluginError

if TYPE_CHECKING:
    from lightning_sdk.plugins import CallRecording, Recorder, Undo

# POST path, as the resources of the SDK give it, to the name of the API in the record.
_APIS = {"/chat/completions": "chat.completions"}

# Set by with_raw_response and with_streaming_response: the agent gets a response, and maybe never a stream.
_RAW_RESPONSE_HEADER = "x-stainless-raw-response"


class OpenAIIntegration:
    """Chat completions of `openai`, by any client class, Azure's included."""

    name: ClassVar[str] = "openai"
    target: ClassVar[str] = "openai"
    distribution: ClassVar[str] = "openai"
    versions: ClassVar[str] = ">=2.20,<4"

    def install(self, recorder: Recorder) -> Undo:
        """Patch the SDK's client classes. Installing again adds no second record of a call.

        Raises:
            PluginError: this version of openai does not have what the patches need; nothing was changed.
        """
        return _installation.install(recorder)


class _Call:
    """One logical call, while `request` runs. Its recording starts with the first attempt, for its URL."""

    __slots__ = ("_api", "_opened", "_over", "_recorder", "_started", "_streamed", "fault", "recording")

    def __init__(self, recorder: Recorder, api: str, *, streamed: bool) -> None:
        self._recorder = recorder
        self.fault = recorder.fault
        self._api = api
        self._streamed = streamed
        self._started = False
        self._over = False
        self._opened: OpenResponse | None = None
        self.recording: CallRecording | None = None

    def attempt(self, request: Any) -> None:
        """A request was built, and is sent next."""
        url = str(request.url)
        if not self._started:
            self._started = True
            self.recording = self._recorder.start_call(
                integration=OpenAIIntegration.name, api=self._api, url=url, streamed=self._streamed
            )
        if self.recording is not None and not self._over:
            for name, value in self.recording.headers(url).items():
                request.headers[name] = value
            self.recording.sent(_body(request))

    def answered(self, client: Any, kwargs: dict[str, Any], *, is_async: bool) -> dict[str, Any]:
        """An attempt succeeded. Returns the arguments for `_process_response`."""
        if self.recording is None or self._over:
            return kwargs
        response = kwargs["response"]
        self.recording.answered(response.status_code, response.headers)
        if not self._streamed and _is_read(response):
            self._over = True
            self.recording.received(response.content)
            self.recording.finish("ok")
            return kwargs
        self._opened = OpenResponse(response, self.recording, self.fault, is_async=is_async)
        derived = stream_class(kwargs.get("stream_cls")) if self._streamed else None
        if derived is None or _RAW_RESPONSE_HEADER in response.request.headers:
            self._opened.keep_body(
                functools.partial(_split_events, client._make_sse_decoder) if self._streamed else None
            )
        return kwargs if derived is None else {**kwargs, "stream_cls": derived}

    def failed(self, error: BaseException) -> None:
        """`request` raised, or something of ours did on the way."""
        if self.recording is None or self._over:
            return
        self._over = True
        if self._opened is not None:
            self._opened.finish(outcome_of(error), error)
            return
        response = getattr(error, "response", None)
        try:
            if response is not None:
                self.recording.answered(response.status_code, response.headers)
                if _is_read(response):
                    self.recording.received(response.content)
        finally:
            self.recording.finish(outcome_of(error), error)

    def release(self) -> None:
        """`request` is over. A connection may keep a copy of its context, and so this object, for long."""
        self._over = True
        self.recording = self._opened = None


def _body(request: Any) -> bytes:
    """What is sent; empty where it is an iterator of the agent's, which only the transport may read."""
    try:
        body: bytes = request.content
    except RuntimeError:
        return b""
    return body


def _is_read(response: Any) -> bool:
    try:
        response.content  # noqa: B018  # a property that raises
    except RuntimeError:  # ResponseNotRead, of whichever httpx
        return False
    return True


def _split_events(make_decoder: Callable[[], Any], body: bytes) -> list[str]:
    return [event.data for event in make_decoder().iter_bytes(iter((body,)))]


_current: ContextVar[_Call | None] = ContextVar("lightning_openai_call", default=None)


def _begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
    """The call that `request` was asked for; None where it is none of those that are recorded."""
    recorder = _installation.recorder
    if recorder is None:
        return None
    try:
        options = args[1] if len(args) > 1 else kwargs["options"]
        api = _APIS.get(options.url)
        if api is None or options.method.lower() != "post":
            return None
        return _Call(recorder, api, streamed=kwargs.get("stream") is True)
    except Exception as error:
        recorder.fault("openai request", error)
        return None


def _failed(call: _Call | None, error: BaseException) -> None:
    if call is not None:
        try:
            call.failed(error)
        except Exception as fault:
            call.fault("openai request", fault)


def _leave(call: _Call | None, token: Any) -> None:
    if call is not None:
        call.release()
    try:
        _current.reset(token)
    except ValueError:
        # A coroutine that was dropped is closed by whoever collects it, in another context.
        pass


def _request(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = _begin(args, kwargs)
    # Also for a request that is not recorded: it may be made in the middle of one that is.
    token = _current.set(call)
    try:
        return wrapped(*args, **kwargs)
    except BaseException as error:
        _failed(call, error)
        raise
    finally:
        _leave(call, token)


async def _async_request(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = _begin(args, kwargs)
    token = _current.set(call)
    try:
        return await wrapped(*args, **kwargs)
    except BaseException as error:
        _failed(call, error)
        raise
    finally:
        _leave(call, token)


def _build_request(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    request = wrapped(*args, **kwargs)
    call = _current.get()
    if call is not None:
        try:
            call.attempt(request)
        except Exception as error:
            call.fault("openai attempt", error)
    return request


def _process_response(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_async: bool
) -> Any:
    call = _current.get()
    if call is not None:
        try:
            kwargs = call.answered(instance, kwargs, is_async=is_async)
        except Exception as error:
            _failed(call, error)
            call.fault("openai response", error)
    return wrapped(*args, **kwargs)


def _make_targets() -> Sequence[Target]:
    import openai

    process, process_async = (functools.partial(_process_response, is_async=value) for value in (False, True))
    try:
        module = importlib.import_module("openai._base_client")
        targets = [
            Target(module.SyncAPIClient, "request", _request),
            Target(module.AsyncAPIClient, "request", _async_request),
            Target(module.BaseClient, "_build_request", _build_request),
            Target(module.SyncAPIClient, "_process_response", process),
            Target(module.AsyncAPIClient, "_process_response", process_async),
        ]
        needed = [(target.owner, target.name) for target in targets]
        needed += [(module.Stream, "_iter_events"), (module.AsyncStream, "_iter_events")]
        missing = [f"{owner.__name__}.{name}" for owner, name in needed if name not in vars(owner)]
    except (ImportError, AttributeError) as error:
        missing = [str(error)]
    if missing:
        raise PluginError(
            f"openai {openai.__version__} cannot be recorded, for it lacks {', '.join(missing)}: "
            f"install openai{OpenAIIntegration.versions}"
        )
    return targets


_installation = Installation(_make_targets)
