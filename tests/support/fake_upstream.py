"""A server that answers `/v1/completions` as vLLM does, in the test's own process, over a real socket.

It "samples" the prompt's bytes backwards, then the end token; each byte's log probability is -byte / 100, of the
weights that are loaded, each of which adds its own offset.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from support.policy_fakes import END


class FakeUpstream:
    """What it was asked, and knobs for what goes wrong."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.controls: list[str] = []
        # What the loaded weights add to each log probability; by the name of their directory.
        self.offsets: dict[str, float] = {}
        self.offset = 0.0
        self.raw = False
        # Loading leaves another offset than it should.
        self.loads_wrongly: float | None = None
        self.tells_ids = True
        self.dev_mode = True
        self.refuses: tuple[int, dict[str, Any]] | None = None
        # A streamed answer stops after so many tokens: "break" hangs up, "error" says so, "wait" waits for `go_on`.
        self.after: tuple[int, str] | None = None
        self.go_on = threading.Event()
        self.open_streams = 0
        self.paused = False
        self.app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/pause", self._control, methods=["POST"]),
                Route("/resume", self._control, methods=["POST"]),
                Route("/reset_prefix_cache", self._control, methods=["POST"]),
                Route("/collective_rpc", self._control, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "upstream-model", "max_model_len": 512}]})

    async def _control(self, request: Request) -> Response:
        if not self.dev_mode:
            return JSONResponse({"detail": "Not Found"}, 404)
        query = f"?{request.url.query}" if request.url.query else ""
        self.controls.append(request.url.path + query)
        if request.url.path == "/collective_rpc":
            assert self.paused
            asked = await request.json()
            assert asked["method"] == "reload_weights"
            path = Path(asked["kwargs"]["weights_path"])
            self.offset = self.offsets[path.name] if self.loads_wrongly is None else self.loads_wrongly
        elif request.url.path in ("/pause", "/resume"):
            self.paused = request.url.path == "/pause"
        return JSONResponse({})

    async def _completions(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        if self.refuses is not None:
            status, error = self.refuses
            return JSONResponse({"error": error}, status, headers={"retry-after": "7"})
        if "prompt_logprobs" in body:
            told = [None, *({str(token): {"logprob": self._logprob(token)}} for token in body["prompt"][1:])]
            return JSONResponse({"choices": [{"index": 0, "text": "x", "prompt_logprobs": told}]})
        if body.get("stream"):
            return StreamingResponse(self._stream(body), media_type="text/event-stream")
        tokens = self._answer(body)
        choices = [self._part(body, choice, tokens, "length") for choice in range(body["n"])]
        return JSONResponse({"choices": choices})

    def _answer(self, body: dict[str, Any]) -> list[int]:
        said = [token for token in reversed(body["prompt"]) if token < 256]
        return [*said, END][: body["max_tokens"]]

    def _logprob(self, token: int, temperature: float = 1.0) -> float:
        return (-token / 100 + self.offset) / (1.0 if self.raw else temperature or 1.0)

    def _part(
        self, body: dict[str, Any], choice: int, tokens: list[int], finish: str | None
    ) -> dict[str, Any]:
        values = [self._logprob(token, body["temperature"]) for token in tokens]
        top = [
            {f"token_id:{token}": value, "token_id:7": -9.0}
            for token, value in zip(tokens, values, strict=True)
        ]
        part: dict[str, Any] = {
            "index": choice,
            "text": "?",  # nobody should need it
            "finish_reason": finish,
            "logprobs": {"token_logprobs": values, "top_logprobs": top},
        }
        if self.tells_ids:
            part["token_ids"] = tokens
        return part

    async def _stream(self, body: dict[str, Any]) -> AsyncGenerator[str, None]:
        self.open_streams += 1
        try:
            tokens = self._answer(body)
            for place, token in enumerate(tokens):
                if self.after is not None and place == self.after[0]:
                    if self.after[1] == "break":
                        raise RuntimeError("hung up, as the test asks")
                    if self.after[1] == "error":
                        yield f"data: {json.dumps({'error': {'message': 'the engine died'}})}\n\n"
                        return
                    while not self.go_on.is_set():
                        await asyncio.sleep(0.01)
                while self.paused:
                    await asyncio.sleep(0.01)
                finish = None if place + 1 < len(tokens) else "stop" if token == END else "length"
                for choice in range(body["n"]):
                    part = self._part(body, choice, [token], finish)
                    yield f"data: {json.dumps({'choices': [part]})}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.open_streams -= 1


@contextmanager
def running(app: Starlette) -> Iterator[str]:
    """Serve an application on a free loopback port; its root URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    started = threading.Event()
    startup = server.startup

    async def start(*args: Any, **kwargs: Any) -> None:
        await startup(*args, **kwargs)
        started.set()

    server.startup = start  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(20)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
