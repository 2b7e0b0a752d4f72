"""The SDKs that Stainless generates (openai, anthropic) are built alike: how their calls are recorded and routed.

All shapes of calls (create, parse, stream helpers, raw responses; sync and async) meet in a few methods:

* `SyncAPIClient.request`, `AsyncAPIClient.request`: one logical call, retries included;
* `BaseClient._build_request`: each HTTP attempt, with its exact bytes and final URL;
* `_client`, the HTTP client that sends it: an attribute, which for a routed call gives a sender of ours;
* `SyncAPIClient._process_response`, `AsyncAPIClient._process_response`: the answer of the one that succeeded;
  an attempt that the SDK repeats is only counted.

Bodies that are read later are followed by `_streams`. The outcome is that of the model's call: a whole answer is
"ok" even where the SDK then fails to parse it for the agent.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lightning_integrations._patches import Addition, Installation, Target
from lightning_integrations._senders import Readdressed, Senders
from lightning_integrations._streams import OpenResponse, StreamClasses, outcome_of
from lightning_sdk.errors import PluginError, RoutingError

if TYPE_CHECKING:
    from lightning_sdk.plugins import CallRecording, Recorder, Route, Undo

# Set by with_raw_response and with_streaming_response: the agent gets a response, and maybe never a stream.
_RAW_RESPONSE_HEADER: Final = "x-stainless-raw-response"


@dataclass(frozen=True, slots=True)
class Sdk:
    """What differs between them."""

    # Of the integration and of the package.
    name: str
    versions: str
    # The end of a path to the name of the API in the record.
    apis: Mapping[str, str]
    # Of those, what the policy endpoint answers too.
    routed: frozenset[str]
    # What may stand before such a path where the SDK, or the agent, names it.
    before_path: str
    # Finds what every websocket is opened by: owners and names.
    find_sockets: Callable[[], Sequence[tuple[Any, str]]] = tuple


class _Call:
    """One logical call, while `request` runs. Its recording starts with the first attempt, for its URL."""

    __slots__ = (
        "_client",
        "_opened",
        "_over",
        "_patched",
        "_path",
        "_recorder",
        "_route",
        "_started",
        "_streamed",
        "fault",
        "recording",
    )

    def __init__(
        self,
        patched: StainlessPatches,
        recorder: Recorder,
        client: Any,
        path: str,
        route: Route | None,
        *,
        streamed: bool,
    ) -> None:
        self._patched = patched
        self._recorder = recorder
        self.fault = recorder.fault
        self._client = client
        self._path = path
        self._route = route
        self._streamed = streamed
        self._started = False
        self._over = False
        self._opened: OpenResponse | None = None
        self.recording: CallRecording | None = None

    def routes(self, client: Any) -> bool:
        """Whether what `client` sends now is this call, and goes to the policy endpoint."""
        return self._route is not None and self._client is client and not self._over

    def built(self, request: Any) -> None:
        """The SDK has built a request for the next attempt.

        Raises:
            RoutingError: it has to go to the policy endpoint, and cannot.
        """
        if self._route is None:
            self._attempt(str(request.url), _body(request) or b"")
            return
        if _body(request) is None:
            raise self._refused("its body is an iterator or a form, which cannot be told apart from a file")
        if not urlsplit(str(request.url)).path.rstrip("/").endswith(f"/{self._path}"):
            raise self._refused(f"{type(self._client).__name__} writes it in a shape of its own")

    def readdressed(self, request: Any) -> Readdressed:
        """What is sent to the policy endpoint instead of `request`: the same body, and nothing else of it."""
        route, body = self._route, _body(request)
        if route is None or body is None or self._over:
            raise self._refused("it is over, or was changed while it was sent")
        url = route.url(self._path)
        try:
            self._attempt(url, body)
        except Exception as error:
            self.fault(f"{self._patched.sdk.name} attempt", error)
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if self._streamed else "application/json",
            "user-agent": self._patched.user_agent,
            **route.headers(None if self.recording is None else self.recording.call_id),
        }
        return Readdressed(url, headers, body)

    def _refused(self, why: str) -> RoutingError:
        return refusal(self._route, f"a request to {self._path}", why)

    def start(self, url: str) -> None:
        """Begin the recording, if that has not been done."""
        if not self._started:
            self._started = True
            sdk = self._patched.sdk
            self.recording = self._recorder.start_call(
                integration=sdk.name,
                api=sdk.apis.get(self._path, self._path.replace("/", ".")),
                url=url,
                streamed=self._streamed,
            )

    def _attempt(self, url: str, body: bytes) -> None:
        self.start(url)
        if self.recording is not None and not self._over:
            self.recording.sent(body)

    def added_headers(self, request: Any) -> Mapping[str, str]:
        """What an attempt that is not routed says to the policy endpoint, if it goes there by itself."""
        if self._route is not None or self.recording is None or self._over:
            return {}
        return self.recording.headers(str(request.url))

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
        derived = self._patched.streams.shown(kwargs.get("stream_cls")) if self._streamed else None
        if derived is None or _RAW_RESPONSE_HEADER in response.request.headers:
            self._opened.keep_body(
                functools.partial(_split_events, client._make_sse_decoder) if self._streamed else None
            )
        return kwargs if derived is None else {**kwargs, "stream_cls": derived}

    def failed(self, error: BaseException) -> None:
        """`request` raised, or something of ours did on the way."""
        if isinstance(error, RoutingError):
            self.start("")
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
        self.recording = self._opened = self._client = None


def refusal(route: Route | None, what: str, why: str) -> RoutingError:
    """The error of a call that is not made."""
    agent = "" if route is None else route.agent
    return RoutingError(
        f"{what} of the routed agent {agent!r} cannot go to the policy endpoint: {why}; make it in a @trace_agent "
        "scope of another name, or leave this one out of agents"
    )


def _body(request: Any) -> bytes | None:
    """What is sent; None where it is an iterator of the agent's, which only the transport may read."""
    try:
        body: bytes = request.content
    except RuntimeError:
        return None
    return body


def _is_read(response: Any) -> bool:
    try:
        response.content  # noqa: B018  # a property that raises
    except RuntimeError:  # ResponseNotRead, of whichever httpx
        return False
    return True


def _split_events(make_decoder: Callable[[], Any], body: bytes) -> list[str]:
    return [event.data for event in make_decoder().iter_bytes(iter((body,)))]


class _HttpClient:
    """The attribute `_client` of the SDK's clients: that of the instance, or for a routed call our sender."""

    def __init__(self, current: ContextVar[_Call | None], senders: Senders) -> None:
        self._current = current
        self._senders = senders

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        try:
            own = vars(instance)["_client"]
        except KeyError:
            raise AttributeError(f"{type(instance).__name__!r} object has no attribute '_client'") from None
        call = self._current.get()
        if call is None or not call.routes(instance):
            return own
        # One that is closed says so itself, and sends nothing.
        return own if getattr(own, "is_closed", False) is True else self._senders.beside(own)

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)["_client"] = value

    def __delete__(self, instance: Any) -> None:
        vars(instance).pop("_client", None)


class StainlessPatches:
    """The patches of one SDK. One for each, made where its integration is imported."""

    def __init__(self, sdk: Sdk) -> None:
        self.sdk = sdk
        self.user_agent = f"lightning_sdk ({sdk.name})"
        paths = "|".join(sorted(map(re.escape, sdk.apis), key=len, reverse=True))
        self._path = re.compile(rf"{sdk.before_path}/({paths})/?")
        self._current: ContextVar[_Call | None] = ContextVar(f"lightning_{sdk.name}_call", default=None)
        self._senders = Senders(self._readdress)
        self._installation = Installation(self._make_targets)

    def install(self, recorder: Recorder) -> Undo:
        """Patch the SDK's client classes. Installing again adds no second record of a call.

        Raises:
            PluginError: this version does not have what the patches need; nothing was changed.
        """
        return self._installation.install(recorder)

    @functools.cached_property
    def streams(self) -> StreamClasses:
        """Its classes of streams."""
        package = importlib.import_module(self.sdk.name)
        return StreamClasses(package.Stream, package.AsyncStream)

    def _enter_socket(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A connection that goes past `request` is about to be made: refused, if it is a routed agent's."""
        recorder = self._installation.recorder
        route = None if recorder is None else recorder.route()
        if recorder is None or route is None:
            return wrapped(*args, **kwargs)
        refused = refusal(route, "a websocket", "that has none")
        try:
            recording = recorder.start_call(
                integration=self.sdk.name, api="websocket", url="", streamed=False
            )
            if recording is not None:
                recording.finish("error", refused)
        except Exception as error:
            recorder.fault(f"{self.sdk.name} websocket", error)
        raise refused

    def _begin(self, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """The call that `request` was asked for; None where it is none of those that are recorded."""
        recorder = self._installation.recorder
        if recorder is None:
            return None
        route = recorder.route()
        try:
            options = args[1] if len(args) > 1 else kwargs["options"]
            if options.method.lower() != "post":
                return None
            url = urlsplit(options.url)
            found = self._path.fullmatch(url._replace(query="", fragment="").geturl())
            if found is None and route is None:
                return None
            path = url.path.strip("/") if found is None else found[1]
            call = _Call(self, recorder, client, path, route, streamed=kwargs.get("stream") is True)
        except Exception as error:
            recorder.fault(f"{self.sdk.name} request", error)
            if route is not None:
                raise refusal(route, "a request", f"it cannot be understood ({error})") from error
            return None
        if route is not None and path not in self.sdk.routed:
            refused = refusal(route, f"a request to {path}", "that answers no such request")
            self._failed(call, refused)
            raise refused
        return call

    def _failed(self, call: _Call | None, error: BaseException) -> None:
        if call is not None:
            try:
                call.failed(error)
            except Exception as fault:
                call.fault(f"{self.sdk.name} request", fault)

    def _leave(self, call: _Call | None, token: Any) -> None:
        if call is not None:
            call.release()
        try:
            self._current.reset(token)
        except ValueError:
            # A coroutine that was dropped is closed by whoever collects it, in another context.
            pass

    def _request(self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._begin(instance, args, kwargs)
        # Also for a request that is not recorded: it may be made in the middle of one that is.
        token = self._current.set(call)
        try:
            return wrapped(*args, **kwargs)
        except BaseException as error:
            self._failed(call, error)
            raise
        finally:
            self._leave(call, token)

    async def _async_request(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = self._begin(instance, args, kwargs)
        token = self._current.set(call)
        try:
            return await wrapped(*args, **kwargs)
        except BaseException as error:
            self._failed(call, error)
            raise
        finally:
            self._leave(call, token)

    def _build_request(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        request = wrapped(*args, **kwargs)
        call = self._current.get()
        if call is not None:
            try:
                call.built(request)
                for name, value in call.added_headers(request).items():
                    request.headers[name] = value
            except RoutingError:
                raise
            except Exception as error:
                call.fault(f"{self.sdk.name} attempt", error)
        return request

    def _readdress(self, request: Any) -> Readdressed:
        call = self._current.get()
        if call is None:
            raise refusal(None, "a request", "it belongs to no call")
        return call.readdressed(request)

    def _process_response(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_async: bool
    ) -> Any:
        call = self._current.get()
        if call is not None:
            try:
                kwargs = call.answered(instance, kwargs, is_async=is_async)
            except Exception as error:
                self._failed(call, error)
                call.fault(f"{self.sdk.name} response", error)
        return wrapped(*args, **kwargs)

    def _close(self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._senders.close(vars(instance).get("_client"))

    async def _aclose(
        self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return await wrapped(*args, **kwargs)
        finally:
            await self._senders.aclose(vars(instance).get("_client"))

    def _make_targets(self) -> Sequence[Target | Addition]:
        package = importlib.import_module(self.sdk.name)
        process, process_async = (
            functools.partial(self._process_response, is_async=value) for value in (False, True)
        )
        http_client = _HttpClient(self._current, self._senders)
        targets: list[Target | Addition] = []
        try:
            module = importlib.import_module(f"{self.sdk.name}._base_client")
            targets = [
                Target(module.SyncAPIClient, "request", self._request),
                Target(module.AsyncAPIClient, "request", self._async_request),
                Target(module.BaseClient, "_build_request", self._build_request),
                Target(module.SyncAPIClient, "_process_response", process),
                Target(module.AsyncAPIClient, "_process_response", process_async),
                Target(module.SyncAPIClient, "close", self._close),
                Target(module.AsyncAPIClient, "close", self._aclose),
            ]
            needed = [(target.owner, target.name) for target in targets]
            needed += [(module.Stream, "_iter_events"), (module.AsyncStream, "_iter_events")]
            missing = [f"{owner.__name__}.{name}" for owner, name in needed if name not in vars(owner)]
            targets += [
                Addition(module.SyncAPIClient, "_client", http_client),
                Addition(module.AsyncAPIClient, "_client", http_client),
            ]
            targets += [Target(owner, name, self._enter_socket) for owner, name in self.sdk.find_sockets()]
        except (ImportError, AttributeError) as error:
            missing = [str(error)]
        if missing:
            raise PluginError(
                f"{self.sdk.name} {package.__version__} cannot be recorded, for it lacks {', '.join(missing)}: "
                f"install {self.sdk.name}{self.sdk.versions}"
            )
        return targets
