"""The self-test of `lsdk doctor`: one real call of the openai package, over a real socket, into memory."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import util

from lightning_sdk import testing
from lightning_sdk.cli.checks import Check

_REPLY = {
    "id": "chatcmpl-doctor",
    "object": "chat.completion",
    "created": 1,
    "model": "doctor",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "I am well."},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ],
    "usage": {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8},
}


def self_test() -> Check:
    """Make a call against a server of our own and see whether exactly it is recorded, whole."""
    if util.find_spec("openai") is None:
        return Check("self-test", "openai call", "absent", "openai is not installed")
    try:
        problem = _record_one_call()
    except Exception as error:  # whatever the installed versions do together is the finding
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        return Check("self-test", "openai call", "broken", problem)
    return Check("self-test", "openai call", "ok", "one call, recorded once, with request and response")


def _record_one_call() -> str | None:
    import openai

    with _server() as base_url, _no_proxy(), testing.capture() as captured:
        client = openai.OpenAI(base_url=base_url, api_key="lsdk-doctor", max_retries=0, timeout=10)
        client.chat.completions.create(model="doctor", messages=[{"role": "user", "content": "How are you?"}])
        calls = list(captured.calls)
    if len(calls) != 1:
        return f"1 call was made, {len(calls)} were recorded"
    call = calls[0]
    if call.outcome != "ok":
        return f"the call succeeded, its record says {call.outcome}"
    asked = (call.request or {}).get("messages")
    if asked != [{"role": "user", "content": "How are you?"}]:
        return f"the record's request is not what was sent: {asked!r}"
    if call.response != _REPLY:
        return "the record's response is not what was answered"
    return None


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps(_REPLY).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: stderr is for people."""


@contextmanager
def _server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _no_proxy() -> Iterator[None]:
    """Keep the call on this machine where a proxy is configured for everything."""
    names = ("NO_PROXY", "no_proxy")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "127.0.0.1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
