"""A trainer that is real and tiny: its policy answers one of four letters, and learns which by policy gradient.

It serves its policy itself, over HTTP and with token records, as the policy endpoint does.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import threading
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import uvicorn

from lightning_sdk.client.producer import Producer
from lightning_sdk.home import Home
from lightning_sdk.mdp import Group
from lightning_sdk.mdp.advantages import compute_advantages
from lightning_sdk.mdp.select import Selection
from lightning_sdk.plugins import Report, TrainingRun
from lightning_sdk.policy.app import make_app
from lightning_sdk.policy.engine import Delta, Load, LogprobsMode, SampledToken, SamplingParams
from lightning_sdk.policy.policies import Policies, Policy
from lightning_sdk.policy.recording import TokenRecorder
from support.policy_fakes import END, ByteTokenizer

LETTERS = "abcd"


class BanditEngine:
    """Samples one letter by four numbers, whatever the prompt."""

    context_length = 4096
    vocabulary = 258
    shapes: frozenset[str] = frozenset()
    constrains = False
    seeds_itself = False
    problem: str | None = None

    def __init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.logits = [0.0] * len(LETTERS)
        self.policy_version = 0

    @property
    def load(self) -> Load:
        return Load(running=0, waiting=0)

    def logprobs_mode(self, params: SamplingParams) -> LogprobsMode:
        return "processed" if params.temperature else "raw"

    async def generate(
        self, prompt: Sequence[int], n: int, params: SamplingParams
    ) -> AsyncGenerator[Delta, None]:
        version, logits = self.policy_version, list(self.logits)
        for choice in range(n):
            logprobs = log_softmax(logits, params.temperature or 1.0)
            draw = random.Random(f"{params.seed} {choice}")
            letter = draw.choices(range(len(LETTERS)), [math.exp(each) for each in logprobs])[0]
            tokens = (SampledToken(ord(LETTERS[letter]), logprobs[letter]), SampledToken(END, 0.0))
            await asyncio.sleep(0)
            yield Delta(choice, tokens, LETTERS[letter], "stop", version)


def log_softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    scaled = [each / temperature for each in logits]
    norm = math.log(sum(math.exp(each) for each in scaled))
    return [each - norm for each in scaled]


class BanditTrainer:
    """See `Trainer`."""

    fidelity: ClassVar[Literal["engine", "text"]] = "engine"
    mode: ClassVar[Literal["offline", "online"]] = "online"
    summary: ClassVar[str] = "Learns one of four letters."
    serves: ClassVar[bool] = True

    def __init__(self, *, learning_rate: float = 2.0, fail_at: int | None = None) -> None:
        self.learning_rate = learning_rate
        self.fail_at = fail_at
        self.engine = BanditEngine()

    @classmethod
    def missing(cls) -> str | None:
        return None

    def open(self, run: TrainingRun) -> None:
        self.run = run
        (name,) = run.policies
        self._producer = Producer(
            Home.locate().spool, destination=os.environ["LIGHTNING_ENDPOINT"], token=None
        )
        policies = Policies([Policy(name, self.engine, TokenRecorder(self._producer, name))])
        self._server = uvicorn.Server(
            uvicorn.Config(make_app(policies), port=0, log_level="warning", lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            self._thread.join(0.01)

    @property
    def endpoint(self) -> str | None:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/v1"

    def consume(self, groups: Iterable[Group]) -> Report:
        if self.engine.policy_version == self.fail_at:
            raise RuntimeError("the trainer was told to fail here")
        assert self.run.max_age is not None
        selection = Selection(
            policies="|".join(self.run.policies),
            min_policy_version=self.engine.policy_version - self.run.max_age,
        )
        advantages = compute_advantages(groups, selection=selection)
        gradient = [0.0] * len(LETTERS)
        trained = 0
        for row, transition in enumerate(advantages.table.transitions):
            if not advantages.in_loss_C[row]:
                continue
            assert transition.response_token_ids is not None
            trained += len(transition.response_token_ids)
            chosen = LETTERS.index(chr(transition.response_token_ids[0]))
            for letter, logprob in enumerate(log_softmax(self.engine.logits)):
                gradient[letter] += advantages.advantage_C[row] * ((letter == chosen) - math.exp(logprob))
        dropped: dict[str, int] = {}
        for reason in advantages.reason_C:
            if reason is not None:
                dropped[reason] = dropped.get(reason, 0) + 1
        if trained:
            count = sum(advantages.in_loss_C)
            self.engine.logits = [
                logit + self.learning_rate * float(each) / count
                for logit, each in zip(self.engine.logits, gradient, strict=True)
            ]
            self.engine.policy_version += 1
        metrics = {
            "tokens_trained": float(trained),
            "probability_of_d": math.exp(log_softmax(self.engine.logits)[3]),
        }
        return Report(metrics=metrics, dropped=dropped, policy_version=self.engine.policy_version)

    def save(self, directory: Path) -> None:
        state = {"logits": self.engine.logits, "version": self.engine.policy_version}
        (directory / "bandit.json").write_text(json.dumps(state))

    def restore(self, directory: Path) -> None:
        state = json.loads((directory / "bandit.json").read_text())
        self.engine.logits, self.engine.policy_version = state["logits"], state["version"]

    def export(self, directory: Path) -> Mapping[str, Path]:
        (name,) = self.run.policies
        (directory / name).mkdir()
        self.save(directory / name)
        return {name: directory / name}

    def close(self) -> None:
        if hasattr(self, "_server"):
            self._server.should_exit = True
            self._thread.join()
            self._producer.close()


def install_plugin(directory: Path) -> Path:
    """A distribution with the trainer as backend `bandit`: its directory has to be on the path."""
    info = directory / "bandit-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bandit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[lightning_sdk.backends]\nbandit = support.bandit:BanditTrainer\n"
    )
    return directory
