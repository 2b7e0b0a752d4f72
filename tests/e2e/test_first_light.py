"""The whole loop on a real (tiny) model: agent, endpoint, collector, dataset; each in a process of its own.

What is exported is recomputed from the raw requests and responses that passed on the wire:

1. Every call of every rollout is there once, under the call id that the request carried.
2. Prompt ids are those of the request's messages; response ids decode to what the agent was answered.
3. Log probabilities are the model's own, after temperature.
4. Rewards are bound as emitted: one for a call to that call, the others to the last call; the return-to-go adds up.
5. The agent's credentials are in no record.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lightning_sdk.cli.main import main
from support.recording_proxy import Exchange, recording_proxy
from support.tiny_model import save_tiny_model

pytestmark = pytest.mark.model

TEMPERATURE = 0.7
SECRET = "sk-a-key-that-must-not-be-kept"

AGENT = """
import sys
from concurrent.futures import ThreadPoolExecutor
import openai
import lightning_sdk as ls

TEMPERATURE = float(sys.argv[1])

def ask(messages, stream):
    reply = openai.OpenAI().chat.completions.create(
        model="tiny", messages=messages, temperature=TEMPERATURE, max_tokens=8, stream=stream
    )
    if not stream:
        return reply.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices)

@ls.trace_agent
def solve(question, stream):
    messages = [{"role": "user", "content": question}]
    messages.append({"role": "assistant", "content": ask(messages, stream)})
    ls.emit_reward({"first": 0.25}, call=ls.last_call())
    messages.append({"role": "user", "content": "Sure?"})
    return ask(messages, stream)

def one(number):
    with ls.rollout(task_id=f"task-{number % 3}"):
        solve(f"What is {number % 3}?", stream=number % 2 == 0)
        ls.emit_reward(number % 3)

with ThreadPoolExecutor(3) as pool:
    list(pool.map(one, range(6)))
assert ls.flush(timeout=30)
"""


@contextmanager
def lsdk(*arguments: str) -> Iterator[str]:
    """Run a serving command; the address in the line by which it says that it is ready."""
    command = [sys.executable, "-m", "lightning_sdk", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(word for word in process.stdout.readline().split() if "://" in word)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def run(model: Path, tmp_path: Path) -> tuple[list[dict[str, Any]], list[Exchange]]:
    """What was exported, and what passed on the wire."""
    with (
        lsdk("collect") as collector,
        lsdk("serve", str(model), "--name", "tiny", "--threads", "1", "--endpoint", collector) as endpoint,
        recording_proxy(endpoint) as wire,
    ):
        settings = {
            "LIGHTNING_ENDPOINT": collector,
            "LIGHTNING_POLICY_ENDPOINT": wire.url,
            "OPENAI_BASE_URL": wire.url,
            "OPENAI_API_KEY": SECRET,
        }
        command = [sys.executable, "-c", AGENT, str(TEMPERATURE)]
        subprocess.run(command, env={**os.environ, **settings}, check=True)
        exchanges = list(wire.exchanges)
    out = tmp_path / "transitions.jsonl"
    assert main(["export", "--out", str(out)]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()], exchanges


def answer_of(exchange: Exchange) -> str:
    """The text that the agent was answered."""
    if not exchange.response.startswith(b"data:"):
        return str(json.loads(exchange.response)["choices"][0]["message"]["content"])
    events = [line[6:] for line in exchange.response.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_the_dataset_is_what_passed_on_the_wire(
    run: tuple[list[dict[str, Any]], list[Exchange]], model: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows, exchanges = run
    assert len(exchanges) == 12  # 6 rollouts of 2 calls
    by_call = {exchange.request_headers["x-lightning-call-id"]: exchange for exchange in exchanges}
    assert sorted(row["call_id"] for row in rows) == sorted(by_call)

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for row in rows:
        exchange = by_call[row["call_id"]]
        messages = json.loads(exchange.request)["messages"]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        response, logprobs = row["response_token_ids"], row["response_logprobs"]
        assert row["observation"]["messages"] == messages
        assert row["prompt_token_ids"] == prompt
        assert tokenizer.decode(response, skip_special_tokens=True) == answer_of(exchange)
        assert row["action"]["message"]["content"] == answer_of(exchange)
        assert (row["fidelity"], row["policy"], row["policy_version"]) == ("engine", "tiny", 0)

        with torch.no_grad():
            logits = network(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits / TEMPERATURE, dim=-1)[range(len(response)), response]
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-4)

    for path in (tmp_path / "home").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_rewards_are_bound_to_the_calls_that_earned_them(
    run: tuple[list[dict[str, Any]], list[Exchange]],
) -> None:
    rows, _ = run
    rollouts: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        rollouts.setdefault(row["rollout_id"], []).append(row)
    assert len(rollouts) == 6
    assert len({row["group_id"] for row in rows}) == 3  # two rollouts of each task may be compared
    for first, second in rollouts.values():
        score = float(first["task_id"].removeprefix("task-"))
        assert (first["step"], second["step"]) == (0, 1)
        assert (first["next_call_id"], second["next_call_id"]) == (second["call_id"], None)
        assert (first["reward"], second["reward"]) == (0.25, score)
        assert (first["return_to_go"], second["return_to_go"]) == (0.25 + score, score)
        assert (first["reward_components"], second["reward_components"]) == (
            {"first": 0.25},
            {"reward": score},
        )
        cut = second["action"]["finish_reason"] == "length"
        assert (first["terminated"], first["truncated"]) == (False, False)
        assert (second["terminated"], second["truncated"]) == (not cut, cut)
        assert (first["outcome"], first["drop_reason"]) == ("succeeded", None)
