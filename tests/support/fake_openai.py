"""A real OpenAI-compatible server on loopback that answers as it is told and remembers every byte.

    replies = [Reply("Hello"), Reply(status=429), Reply(tool_calls=[ToolCall("search", '{"q": "x"}')])]
    with FakeOpenAI(replies) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="test")
        ...
        server.exchanges[0].request        # the bytes that came
        server.exchanges[0].response       # the bytes that went (the body, without chunk framing)
        server.exchanges[0].events         # the data of each server-sent event, if it was a stream

Replies are used up in the order of the requests; after the last one each request gets `Reply()`. Instead of a
list, a function from the parsed request to a `Reply` decides (from several threads at once). A `Reply` says
what the model says, the request how it is dressed: as a stream (`"stream": true`, with usage if
`stream_options.include_usage`), with log probabilities (`"logprobs": true`) and as vLLM does with token ids
(`"return_token_ids": true`): `prompt_token_ids` at the root, in a stream of the first chunk, and `token_ids`
in each choice.

Nothing in it is random and no time passes in it, unless `delay_s` says so: a test that needs a call in flight
lets the reply `hold` and waits with `wait_for_requests`; `release` (or leaving the context) lets all go on.

`POST .../chat/completions` under any prefix (Azure's too) is the API; `GET` of it lists nothing;
`POST .../embeddings` answers one vector; `.../completions`, `.../responses` and `.../messages` answer what
`Reply.body` says; the rest is 404.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

PROMPT_TOKEN_IDS = (1, 15, 27, 300)


@dataclass(frozen=True)
class ToolCall:
    """One tool call; its id is `id`, else ``call_<index>``."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True)
class Reply:
    """What the server answers to one request."""

    content: str | Sequence[str] | None = "Hello there"  # several: one for each choice
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None  # else "tool_calls" with tool calls, "stop" without
    prompt_token_ids: Sequence[int] = PROMPT_TOKEN_IDS
    token_ids: Sequence[int] | None = None  # else 100, 101, ... one a word, and 2 at the end
    logprobs: Sequence[float] | None = None  # else -0.5, -1.0, ... one a token
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None  # instead of what is above: exactly these bytes
    delay_s: float = 0.0
    hold: bool = False  # answer nothing before `release`
    hold_after_events: int | None = None  # in a stream: stop here until `release`
    hang_up: bool = False  # close the connection instead of answering
    cut_after_events: int | None = None  # in a stream: close the connection here, without an end
    done: bool = True  # a stream ends with [DONE]


@dataclass(eq=False)
class Exchange:
    """One request and its answer."""

    method: str
    path: str
    headers: dict[str, str]
    request: bytes
    status: int = 0
    response: bytes = b""
    events: list[str] = field(default_factory=list)

    @property
    def json(self) -> Any:
        """The parsed request."""
        return json.loads(self.request)


Script = Iterable[Reply] | Callable[[Any], Reply]


class FakeOpenAI:
    """The server, listening while it is used as a context manager."""

    def __init__(self, script: Script = ()) -> None:
        self.exchanges: list[Exchange] = []
        self.released = threading.Event()
        self._decide = script if callable(script) else None
        self._replies: Iterator[Reply] = iter(()) if callable(script) else iter(script)
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def origin(self) -> str:
        """Such as ``http://127.0.0.1:40123``."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def base_url(self) -> str:
        """What to give to the SDK as ``base_url``."""
        return f"{self.origin}/v1"

    def __enter__(self) -> FakeOpenAI:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def release(self) -> None:
        """Let every reply that holds go on, now and later."""
        self.released.set()

    def wait_for_requests(self, count: int, timeout_s: float = 10.0) -> None:
        """Return when `count` requests have come. Raises AssertionError if they do not."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.exchanges) >= count, timeout_s), self.exchanges

    def _take(self, exchange: Exchange) -> Reply:
        with self._changed:
            self.exchanges.append(exchange)
            self._changed.notify_all()
            if self._decide is None:
                return next(self._replies, Reply())
        return self._decide(exchange.json)


class _Hangup(Exception):
    """The script says to close the connection."""


def _handler(fake: FakeOpenAI) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            exchange = Exchange("GET", self.path, dict(self.headers.items()), b"")
            fake._take(exchange)
            found = self.path.endswith("/chat/completions")
            self._send(exchange, 200 if found else 404, {}, {"object": "list", "data": [], "has_more": False})

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            exchange = Exchange("POST", self.path, dict(self.headers.items()), self.rfile.read(length))
            path = self.path.partition("?")[0]
            if path.endswith("/embeddings"):
                fake._take(exchange)
                vector = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
                usage = {"prompt_tokens": 1, "total_tokens": 1}
                body = {"object": "list", "model": "fake", "data": [vector], "usage": usage}
                self._send(exchange, 200, {}, body)
            elif path.endswith(("/completions", "/responses", "/messages")):
                self._chat(exchange, fake._take(exchange))
            else:
                self._send(exchange, 404, {}, {"error": {"message": "no such path"}})

        def _chat(self, exchange: Exchange, reply: Reply) -> None:
            if reply.delay_s:
                time.sleep(reply.delay_s)
            if reply.hold:
                fake.released.wait()
            if reply.hang_up:
                self._hang_up()
            elif reply.status >= 400:
                error = {"error": {"message": f"scripted {reply.status}", "type": "scripted", "code": None}}
                self._send(exchange, reply.status, reply.headers, reply.body or error)
            elif exchange.json.get("stream") is True:
                self._stream(exchange, reply)
            else:
                self._send(
                    exchange, reply.status, reply.headers, reply.body or completion(exchange.json, reply)
                )

        def _send(
            self, exchange: Exchange, status: int, headers: Mapping[str, str], body: bytes | dict[str, Any]
        ) -> None:
            payload = body if isinstance(body, bytes) else json.dumps(body, indent=1).encode()
            exchange.status, exchange.response = status, payload
            self._start(status, {"content-type": "application/json", **headers}, len(payload))
            self.wfile.write(payload)

        def _stream(self, exchange: Exchange, reply: Reply) -> None:
            exchange.status = reply.status
            self._start(reply.status, {"content-type": "text/event-stream", **reply.headers}, None)
            if reply.body is not None:
                self._chunk(exchange, reply.body)
                self._chunk(exchange, b"")
                return
            events = [json.dumps(chunk) for chunk in chunks(exchange.json, reply)]
            events += ["[DONE]"] if reply.done else []
            for count, data in enumerate(events):
                if reply.hold_after_events == count:
                    fake.released.wait()
                if reply.cut_after_events == count:
                    self._hang_up()
                    return
                exchange.events.append(data)
                if not self._chunk(exchange, f"data: {data}\n\n".encode()):
                    return
            self._chunk(exchange, b"")

        def _chunk(self, exchange: Exchange, payload: bytes) -> bool:
            """Write one chunk, the last one if it is empty. False: the client has gone."""
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(payload), payload))
            except OSError:
                self.close_connection = True
                return False
            exchange.response += payload
            return True

        def _start(self, status: int, headers: Mapping[str, str], length: int | None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if length is None:
                self.send_header("transfer-encoding", "chunked")
            else:
                self.send_header("content-length", str(length))
            self.send_header("x-request-id", "req_fake")
            self.end_headers()

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def completion(request: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """The body of an answer that is no stream."""
    answer = _head(request, "chat.completion")
    answer["choices"] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": content, **_tool_calls(reply)},
            "finish_reason": _finish_reason(reply),
            "logprobs": _logprobs(request, reply, _pieces(content)),
            **_token_ids(request, reply, _pieces(content)),
        }
        for index, content in enumerate(_contents(request, reply))
    ]
    answer["usage"] = _usage(request, reply)
    if request.get("return_token_ids"):
        answer["prompt_token_ids"] = list(reply.prompt_token_ids)
    return answer


def chunks(request: Mapping[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    """The same answer in pieces: per choice its role, one chunk for each word, its tool calls, its end."""
    first = True
    for index, content in enumerate(_contents(request, reply)):
        pieces = _pieces(content)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in pieces]
        for number, call in enumerate(_tool_calls(reply).get("tool_calls", [])):
            function = call["function"]
            half = len(function["arguments"]) // 2
            start = {**call, "function": {**function, "arguments": function["arguments"][:half]}}
            deltas.append({"tool_calls": [{"index": number, **start}]})
            rest = {"index": number, "function": {"arguments": function["arguments"][half:]}}
            deltas.append({"tool_calls": [rest]})
        for number, delta in enumerate([*deltas, {}]):
            last = number == len(deltas)
            # The role comes with no token, each word with its own, the end with what is left.
            tokens = slice(len(pieces), None) if last else slice(max(number - 1, 0), number)
            if number > len(pieces) and not last:
                tokens = slice(0, 0)
            chunk = _head(request, "chat.completion.chunk")
            chunk["choices"] = [
                {
                    "index": index,
                    "delta": delta,
                    "finish_reason": _finish_reason(reply) if last else None,
                    "logprobs": _logprobs(request, reply, pieces, tokens),
                    **_token_ids(request, reply, pieces, tokens),
                }
            ]
            if first and request.get("return_token_ids"):
                chunk["prompt_token_ids"] = list(reply.prompt_token_ids)
            first = False
            yield chunk
    if (request.get("stream_options") or {}).get("include_usage"):
        yield {**_head(request, "chat.completion.chunk"), "choices": [], "usage": _usage(request, reply)}


def _head(request: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-fake",
        "object": kind,
        "created": 1_700_000_000,
        "model": request.get("model", "fake"),
    }


def _contents(request: Mapping[str, Any], reply: Reply) -> Sequence[str | None]:
    if reply.content is None or isinstance(reply.content, str):
        return [reply.content] * (request.get("n") or 1)
    return reply.content


def _pieces(content: str | None) -> list[str]:
    """Words, each with the space before it: the tokens of the content."""
    words = (content or "").split(" ")
    return [word if number == 0 else f" {word}" for number, word in enumerate(words)] if content else []


def _finish_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _tool_calls(reply: Reply) -> dict[str, Any]:
    calls = [
        {
            "id": call.id or f"call_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(reply.tool_calls)
    ]
    return {"tool_calls": calls} if calls else {}


def _all_token_ids(reply: Reply, pieces: Sequence[str]) -> list[int]:
    return [*range(100, 100 + len(pieces)), 2] if reply.token_ids is None else list(reply.token_ids)


def _token_ids(
    request: Mapping[str, Any], reply: Reply, pieces: Sequence[str], part: slice = slice(None)
) -> dict[str, Any]:
    return {"token_ids": _all_token_ids(reply, pieces)[part]} if request.get("return_token_ids") else {}


def _logprobs(
    request: Mapping[str, Any], reply: Reply, pieces: Sequence[str], part: slice = slice(None)
) -> dict[str, Any] | None:
    count = len(_all_token_ids(reply, pieces))
    values = reply.logprobs or [-0.5 * (index + 1) for index in range(count)]
    texts = [*pieces, "</s>", *["?"] * count]
    content = [
        {"token": text, "logprob": value, "bytes": None, "top_logprobs": []}
        for text, value in [*zip(texts, values, strict=False)][part]
    ]
    return {"content": content} if request.get("logprobs") and content else None


def _usage(request: Mapping[str, Any], reply: Reply) -> dict[str, int]:
    sampled = sum(len(_all_token_ids(reply, _pieces(content))) for content in _contents(request, reply))
    prompt = len(reply.prompt_token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
