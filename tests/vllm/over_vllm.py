"""The upstream engine over a real vLLM on the CPU; `nox -s vllm` runs it, since vLLM takes minutes to install.

1. What is told of a token is what transformers computes from the same weights.
2. A publish exchanges the weights; what runs over it says where.
3. vLLM on a CPU computes wrong logits after a reload of a model with tied embeddings: the probe finds it, and the
   old weights are back.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI
from transformers import AutoModelForCausalLM

from lightning_sdk.errors import PublishError
from lightning_sdk.plugins import Probe
from lightning_sdk.policy.engine import Delta, SamplingParams
from lightning_sdk.policy.policies import Policies, Policy
from lightning_sdk.policy.recording import TokenRecorder
from lightning_sdk.policy.sampling import SamplingRequest, decide_sampling
from lightning_sdk.policy.upstream_engine import UpstreamEngine, connect_engine
from lightning_sdk.records import unpack_float32, unpack_int32
from support.policy_fakes import MemoryWriter, served
from support.tiny_model import save_tiny_model

pytestmark = pytest.mark.timeout(900)

PROMPT = list(range(40, 60))
_START_TIMEOUT_S = 600
# vLLM's kernels on the CPU know no smaller heads.
_SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="module", params=["untied", "tied"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp(request.param)
    return [
        save_tiny_model(root / str(seed), seed=seed, tied=request.param == "tied", **_SHAPE)
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def url(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models[0])]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512", "--dtype", "float32"]
    command += ["--enforce-eager", "--logprobs-mode", "processed_logprobs"]
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **settings})
        try:
            _wait_until_it_answers(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(60)


def _wait_until_it_answers(health: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            urllib.request.urlopen(health, timeout=5).close()
            return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"vLLM did not start:\n{log.read_text()[-4000:]}")


@pytest.fixture
async def engine(url: str, models: list[Path]) -> AsyncIterator[UpstreamEngine]:
    engine = await asyncio.to_thread(connect_engine, models[0], url)
    yield engine
    await engine.stop()


def _plain(model: Path, ids: list[int], temperature: float = 1.0) -> list[float]:
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(model)(torch.tensor([ids])).logits[0, :-1]
    logprobs = torch.log_softmax(logits / temperature, -1)
    values: list[float] = logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    return values


def _params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "top_p": 1.0, "seed": 3, "max_tokens": 12, **fields})


def _sampled(deltas: list[Delta], choice: int = 0) -> tuple[list[int], list[float]]:
    tokens = [token for delta in deltas if delta.choice == choice for token in delta.tokens]
    return [token.id for token in tokens], [token.logprob for token in tokens]


def _probe(model: Path) -> Probe:
    return Probe(token_ids=[PROMPT], logprobs=[_plain(model, PROMPT)])


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_log_probabilities_are_those_of_a_plain_pass(
    engine: UpstreamEngine, models: list[Path], temperature: float
) -> None:
    params = _params(temperature=temperature, top_logprobs=2)
    deltas = [delta async for delta in engine.generate(PROMPT, 2, params)]
    for choice in (0, 1):
        ids, logprobs = _sampled(deltas, choice)
        expected = _plain(models[0], PROMPT + ids, temperature or 1.0)[len(PROMPT) - 1 :]
        assert logprobs == pytest.approx(expected, abs=1e-3)
    assert (_sampled(deltas, 0) == _sampled(deltas, 1)) is (temperature == 0)
    assert all(len(token.top) == 2 for delta in deltas for token in delta.tokens)
    assert engine.raw_logprobs is False


async def test_an_answer_by_the_endpoint_is_recorded_with_the_ids_that_were_sampled(
    url: str, models: list[Path]
) -> None:
    writer = MemoryWriter()
    engine = await asyncio.to_thread(connect_engine, models[0], url)
    policies = Policies([Policy("tiny", engine, TokenRecorder(writer, "tiny"))])
    with served(policies) as endpoint:
        async with AsyncOpenAI(base_url=endpoint, api_key="unused", max_retries=0) as client:
            answer: Any = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=8,
                extra_body={"return_token_ids": True},
                extra_headers={"x-lightning-split": "train"},
            )
    (record,) = writer.records
    ids = list(unpack_int32(record.tokens.choices[0].token_ids))
    assert ids == answer.choices[0].token_ids
    whole = [*answer.prompt_token_ids, *ids]
    expected = _plain(models[0], whole)[len(answer.prompt_token_ids) - 1 :]
    assert list(unpack_float32(record.tokens.choices[0].logprobs)) == pytest.approx(expected, abs=1e-3)
    assert json.loads(record.tokens.sampling_effective)["temperature"] == 1


async def test_training_calls_with_prompts_that_are_read_in_pieces_do_not_end_vllm(
    engine: UpstreamEngine, models: list[Path]
) -> None:
    """On a CPU a request with a seed does, where its prompt is read in pieces (vLLM 0.32)."""
    policy = Policy("tiny", engine, TokenRecorder(MemoryWriter(), "tiny"))
    params = decide_sampling(SamplingRequest(seed=7, max_tokens=4), policy, "train", 480)
    # More tokens together than one step of vLLM takes.
    prompts = [[1 + (place * step) % 200 for step in range(480)] for place in range(48)]

    async def sample(prompt: list[int]) -> list[Delta]:
        return [delta async for delta in engine.generate(prompt, 1, params)]

    answers = await asyncio.gather(*map(sample, prompts))
    assert all(deltas[-1].finish_reason for deltas in answers)


async def test_json_of_a_schema_is_what_comes(engine: UpstreamEngine) -> None:
    from lightning_sdk.policy.engine import Constraint

    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    params = _params(max_tokens=200, constraint=Constraint("json_schema", schema))
    text = "".join([delta.text async for delta in engine.generate(PROMPT, 1, params)])
    assert json.loads(text)["a"] in (1, 2)


async def test_weights_are_exchanged_and_an_answer_that_runs_says_where(
    engine: UpstreamEngine, models: list[Path]
) -> None:
    if models[0].parent.name.startswith("tied"):
        with pytest.raises(PublishError, match="do not compute here what the probe says"):
            await engine.publish(models[1], 1, probe=_probe(models[1]), drain_timeout_s=5)
        assert (engine.policy_version, engine.problem) == (0, None)
        assert await engine.score(PROMPT) == pytest.approx(_plain(models[0], PROMPT), abs=1e-3)
        return
    for version, model in ((1, models[1]), (2, models[0])):
        await engine.publish(model, version, probe=_probe(model), drain_timeout_s=5)
        assert await engine.score(PROMPT) == pytest.approx(_plain(model, PROMPT), abs=1e-3)
    running = engine.generate(PROMPT, 1, _params(max_tokens=400))
    deltas = [await anext(running)]
    taking = asyncio.ensure_future(_take(running, deltas))
    while len(deltas) < 5:
        await asyncio.sleep(0.01)
    await engine.publish(models[1], 3, probe=None, drain_timeout_s=0)
    await taking
    ids, logprobs = _sampled(deltas)
    plain = {
        version: _plain(model, PROMPT + ids)[len(PROMPT) - 1 :]
        for version, model in ((2, models[0]), (3, models[1]))
    }
    for place, delta in enumerate(deltas):
        assert logprobs[place] == pytest.approx(plain[delta.policy_version][place], abs=1e-3)
    assert {delta.policy_version for delta in deltas} == {2, 3}


async def _take(running: Any, deltas: list[Delta]) -> None:
    async for delta in running:
        deltas.append(delta)  # noqa: PERF401 - watched while it grows
