"""Policy endpoint without torch: a byte tokenizer, an engine that is told what to say, a server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from lightning_sdk.errors import PublishError, SpoolError
from lightning_sdk.plugins import Probe
from lightning_sdk.policy.admin import Admin
from lightning_sdk.policy.app import make_app
from lightning_sdk.policy.engine import Delta, Load, LogprobsMode, SampledToken, SamplingParams
from lightning_sdk.policy.errors import queue_full
from lightning_sdk.policy.harness import Harness
from lightning_sdk.policy.policies import Policies, Policy
from lightning_sdk.policy.recording import TokenRecorder
from lightning_sdk.policy.stop_text import StoppableText
from lightning_sdk.records import Record

START, END = 256, 257
_SPECIAL = {START: "<|im_start|>", END: "<|im_end|>"}


class ByteTokenizer:
    """ChatML over UTF-8 bytes: id = byte, and two special tokens. Its template `knows_tools` or does not."""

    def __init__(self, *, knows_tools: bool = False, arguments_as_text: bool = True) -> None:
        self._knows_tools = knows_tools
        self._arguments_as_text = arguments_as_text

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        out = b""
        for token in token_ids:
            if token < 256:
                out += bytes([token])
            elif not skip_special_tokens:
                out += _SPECIAL[token].encode()
        return out.decode(errors="replace")

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            for special, name in _SPECIAL.items():
                if text.startswith(name):
                    ids.append(special)
                    text = text[len(name) :]
                    break
            else:
                ids.extend(text[0].encode())
                text = text[1:]
        return ids

    def least_tokens(self, text: str) -> int:
        return len(text) // max(map(len, _SPECIAL.values()))

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        text = ""
        if tools and self._knows_tools:
            text += f"<|im_start|>system\n# Tools\n{json.dumps(list(tools))}<|im_end|>\n"
        for message in messages:
            if message["role"] == "tool" and not self._knows_tools:
                raise ValueError("roles are system, user and assistant")
            text += f"<|im_start|>{message['role']}\n{message['content']}{self._calls(message)}<|im_end|>\n"
        return text + "<|im_start|>assistant\n"

    def _calls(self, message: Mapping[str, Any]) -> str:
        if not self._knows_tools:
            return ""
        text = ""
        for call in message.get("tool_calls", ()):
            function = call["function"]
            as_text = self._arguments_as_text and isinstance(function["arguments"], str)
            arguments = function["arguments"] if as_text else json.dumps(function["arguments"])
            text += f'\n<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>'
        return text


class ScriptedEngine:
    """Says the next script, byte by byte, in every choice. Each token takes one permit of the `gate`."""

    context_length = 4096
    vocabulary = 258
    shapes: frozenset[str] = frozenset()
    constrains = False
    seeds_itself = False
    problem: str | None = None

    def __init__(self, *scripts: str, tokenizer: ByteTokenizer | None = None) -> None:
        self.tokenizer = tokenizer or ByteTokenizer()
        self.scripts = list(scripts)
        self.prompts: list[str] = []
        self.params: list[SamplingParams] = []
        self.gate: asyncio.Semaphore | None = None
        self.full = False
        self.failure: Exception | None = None
        self.policy_version = 0
        # How much the policy version grows with each token.
        self.updates_a_token = 0
        self.published: list[tuple[Path, Probe | None]] = []
        # Why it takes no weights.
        self.refusal: str | None = None
        self._running = 0

    @property
    def load(self) -> Load:
        return Load(running=self._running, waiting=0)

    def logprobs_mode(self, params: SamplingParams) -> LogprobsMode:
        return "raw" if params.greedy else "processed"

    async def publish(
        self, weights: Path, version: int, *, probe: Probe | None, drain_timeout_s: float
    ) -> None:
        if self.refusal is not None:
            raise PublishError(self.refusal)
        self.published.append((weights, probe))
        self.policy_version = version

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        return [-1.0] * (len(token_ids) - 1)

    async def stop(self) -> None:
        return

    async def generate(
        self, prompt: Sequence[int], n: int, params: SamplingParams
    ) -> AsyncGenerator[Delta, None]:
        if self.full:
            raise queue_full(1)
        self.prompts.append(self.tokenizer.decode(prompt, skip_special_tokens=False))
        self.params.append(params)
        script = self.scripts.pop(0)
        self._running += n
        try:
            for choice in range(n):
                async for delta in self._speak(choice, script, params):
                    yield delta
        finally:
            self._running -= n

    async def _speak(self, choice: int, script: str, params: SamplingParams) -> AsyncGenerator[Delta, None]:
        text = StoppableText(self.tokenizer, params.stop)
        for place, token in enumerate([*script.encode(), END]):
            if self.gate is not None:
                await self.gate.acquire()
            if self.failure is not None and place == 1:
                raise self.failure
            version = self.policy_version
            self.policy_version += self.updates_a_token
            sampled = (SampledToken(token, -0.5 - place, ((token, -0.5 - place), (END, -9.0))),)
            if token == END:
                yield Delta(choice, sampled, text.flush(), "stop", version)
                return
            piece = text.feed(token)
            if text.stopped:
                yield Delta(choice, sampled, piece, "stop", version)
                return
            if place + 1 == params.max_tokens:
                yield Delta(choice, sampled, piece + text.flush(), "length", version)
                return
            yield Delta(choice, sampled, piece, None, version)


class MemoryWriter:
    """Keeps records; `broken` makes it fail as a full disk does."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.broken = False
        self._clock = 0

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    def write(self, record: Record) -> None:
        if self.broken:
            raise SpoolError("no space left on device")
        self.records.append(record)


@contextmanager
def served(
    policies: Policies,
    *,
    token: str | None = None,
    admin: Admin | None = None,
    harness: Harness | None = None,
) -> Iterator[str]:
    """Serve on a free loopback port; the base URL, with /v1."""
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(policies, token=token, admin=admin, harness=harness),
            port=0,
            log_level="warning",
            lifespan="off",
        )
    )
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
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        thread.join()


def scripted_policies(
    *scripts: str, tokenizer: ByteTokenizer | None = None
) -> tuple[Policies, ScriptedEngine, MemoryWriter]:
    """One policy over an engine that says `scripts`, one a request."""
    engine, writer = ScriptedEngine(*scripts, tokenizer=tokenizer), MemoryWriter()
    return Policies([Policy("scripted", engine, TokenRecorder(writer, "scripted"))]), engine, writer
