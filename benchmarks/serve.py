"""What the policy endpoint costs and gains, in two parts. Name one as the argument; without, both run that can.

batching: tokens a second of the transformers engine with 16 answers at once, beside one at a time; and how many
tokens of prompts it really reads when the rollouts of a group share theirs.

vllm: tokens a second and time to the end of 64 streamed chat completions at once, of a vLLM server alone and of the
endpoint in front of it, in turns; and what one short call takes, alone, either way. Needs vLLM (`nox -s vllm`
installs one for the CPU).

LIGHTNING_BENCHMARK_MODEL is the directory of a model; else a random one of 30 million weights is made.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

AT_ONCE = 16
TOKENS = 48
STREAMS = 64
STREAM_TOKENS = 32
TURNS = 5
SHORT_CALLS = 100
QUESTION = "Tell a story about the number {}, its friends, and what they did on a long winter evening."
SYSTEM = (
    "You are a patient teller of stories. Answer in whole sentences, and never use the same word twice. " * 6
)


def make_model(directory: Path) -> Path:
    """A random Llama whose heads vLLM's kernels know, with a tokenizer of bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={byte: place for place, byte in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")  # noqa: S106
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=9,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def batching(model: Path) -> None:
    """The transformers engine."""
    from lightning_sdk.policy.engine import SamplingParams
    from lightning_sdk.policy.transformers_engine import load_engine

    engine = load_engine(model, device="cpu", max_batch=AT_ONCE)
    read = 0
    forward = engine._model.forward

    def counted(first: int, rows: Any) -> Any:
        nonlocal read
        read += sum(map(len, rows))
        return forward(first, rows)

    engine._model.forward = counted  # type: ignore[method-assign]

    def prompt(number: int, system: str | None = None) -> list[int]:
        turns = [{"role": "system", "content": system}] if system else []
        turns.append({"role": "user", "content": QUESTION.format(number)})
        return engine.tokenizer.encode(engine.tokenizer.render(turns, None))

    async def answer(ids: list[int], seed: int) -> int:
        params = SamplingParams(temperature=1.0, top_p=1.0, seed=seed, max_tokens=TOKENS)
        return sum([len(delta.tokens) async for delta in engine.generate(ids, 1, params)])

    async def rate(at_once: int, first: int) -> float:
        started = time.perf_counter()
        tokens = await asyncio.gather(*(answer(prompt(first + each), each) for each in range(at_once)))
        return sum(tokens) / (time.perf_counter() - started)

    async def measure() -> tuple[float, float, int, int]:
        nonlocal read
        await rate(1, 0)
        alone = statistics.median([await rate(1, 1000 + turn) for turn in range(TURNS)])
        together = statistics.median([await rate(AT_ONCE, 2000 + turn * AT_ONCE) for turn in range(TURNS)])
        read = 0
        # Four tasks with four rollouts each, all under one system prompt; one token each, so that all is reading.
        group = [prompt(3000 + place // 4, SYSTEM) for place in range(AT_ONCE)]
        params = SamplingParams(temperature=1.0, top_p=1.0, seed=0, max_tokens=1)

        async def read_only(ids: list[int]) -> None:
            async for _ in engine.generate(ids, 1, params):
                pass

        await asyncio.gather(*map(read_only, group))
        return alone, together, sum(map(len, group)), read

    try:
        alone, together, asked, ran = asyncio.run(measure())
    finally:
        engine.close()
    print(f"transformers engine, one answer at a time       {alone:8.1f} tokens/s")
    print(f"transformers engine, {AT_ONCE} at once                 {together:8.1f} tokens/s")
    print(f"ratio                                           {together / alone:8.2f}")
    print(f"prompt tokens of {AT_ONCE} rollouts, of them read      {asked:8d} {ran:8d}  ({ran / asked:.0%})")


@contextmanager
def process(command: list[str], health: str, **settings: str) -> Iterator[None]:
    """A server that runs meanwhile, once it answers."""
    with tempfile.TemporaryFile() as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **settings})
        try:
            while True:
                try:
                    urllib.request.urlopen(health, timeout=5).close()  # noqa: S310
                    break
                except OSError:
                    if started.poll() is not None:
                        log.seek(0)
                        raise SystemExit(log.read()[-3000:].decode()) from None
                    time.sleep(0.5)
            yield
        finally:
            started.terminate()
            started.wait(60)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def streams(url: str, model: str, seed: int) -> tuple[float, float]:
    """Tokens a second of many streams at once, and the median time that one takes."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=600) as client:

        async def one(number: int) -> tuple[int, float]:
            started = time.perf_counter()
            stream = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": QUESTION.format(number)}],
                max_tokens=STREAM_TOKENS,
                stream=True,
                stream_options={"include_usage": True},
                # As the endpoint asks vLLM: the comparison is about what stands in between.
                logprobs=True,
                extra_body={"return_token_ids": True},
            )
            tokens = 0
            async for chunk in stream:
                if chunk.usage is not None:
                    tokens = chunk.usage.completion_tokens
            return tokens, time.perf_counter() - started

        started = time.perf_counter()
        done = await asyncio.gather(*(one(seed + number) for number in range(STREAMS)))
        wall = time.perf_counter() - started
    return sum(tokens for tokens, _ in done) / wall, statistics.median(seconds for _, seconds in done)


async def short_call_ms(url: str, model: str) -> float:
    """Median time of a call that samples one token, one after the other."""
    from openai import AsyncOpenAI

    times = []
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=600) as client:
        for _ in range(SHORT_CALLS):
            started = time.perf_counter()
            await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=1, logprobs=True
            )
            times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def over_vllm(model: Path) -> None:
    """The endpoint in front of vLLM."""
    vllm_port, our_port = free_port(), free_port()
    theirs = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    theirs += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(vllm_port)]
    theirs += ["--max-model-len", "1024", "--dtype", "float32", "--enforce-eager"]
    theirs += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    upstream = f"http://127.0.0.1:{vllm_port}"
    ours = [sys.executable, "-m", "lightning_sdk", "serve", str(model), "--name", "m"]
    ours += ["--port", str(our_port), "--upstream", upstream + "/v1"]
    urls = {"vLLM alone": upstream + "/v1", "endpoint before vLLM": f"http://127.0.0.1:{our_port}/v1"}
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    rates: dict[str, list[float]] = {name: [] for name in urls}
    waits: dict[str, list[float]] = {name: [] for name in urls}
    calls: dict[str, list[float]] = {name: [] for name in urls}
    with (
        process(theirs, upstream + "/health", **settings),
        tempfile.TemporaryDirectory() as home,
        process(ours, f"http://127.0.0.1:{our_port}/health", LIGHTNING_HOME=home),
    ):
        for url in urls.values():
            asyncio.run(streams(url, "m", 0))  # compiles, and opens what is opened once
            asyncio.run(short_call_ms(url, "m"))
        for turn in range(TURNS):
            for name, url in urls.items():
                rate, wait = asyncio.run(streams(url, "m", 1000 * (turn + 1)))
                rates[name].append(rate)
                waits[name].append(wait)
                calls[name].append(asyncio.run(short_call_ms(url, "m")))
    told = {name: tuple(map(statistics.median, (rates[name], waits[name], calls[name]))) for name in urls}
    for name, (rate, wait, call) in told.items():
        print(
            f"{name:24}{rate:10.1f} tokens/s at {STREAMS} streams, {wait:7.2f} s each; {call:8.2f} ms a short call"
        )
    (alone, _, call), (before, _, our_call) = told.values()
    print(f"throughput lost         {1 - before / alone:10.1%}")
    print(f"added to a short call   {our_call - call:10.2f} ms")


def main() -> None:
    """Measure and print."""
    parts: dict[str, Callable[[Path], None]] = {"batching": batching, "vllm": over_vllm}
    wanted = sys.argv[1:] or [name for name in parts if name == "batching" or find_spec("vllm") is not None]
    with tempfile.TemporaryDirectory() as directory:
        given = os.environ.get("LIGHTNING_BENCHMARK_MODEL")
        model = Path(given) if given else make_model(Path(directory) / "model")
        for name in wanted:
            parts[name](model)


if __name__ == "__main__":
    main()
