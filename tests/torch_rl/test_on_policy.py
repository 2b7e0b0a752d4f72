"""Against our own policy engine, in float32: what it sampled is on policy for the trainer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the [torch] extra")

from lightning_backends.torch_rl import TorchRLTrainer  # noqa: E402
from lightning_sdk.mdp import Group  # noqa: E402
from lightning_sdk.policy.engine import SamplingParams  # noqa: E402
from lightning_sdk.policy.transformers_engine import load_engine  # noqa: E402
from support import credit_groups  # noqa: E402
from support.tiny_model import save_tiny_model  # noqa: E402
from support.training import KeepingPublisher, run_of  # noqa: E402

pytestmark = pytest.mark.model


async def _sampled(directory: Path, temperature: float) -> Group:
    """Four rollouts of three turns that go on from each other, sampled at once by the engine."""
    engine = load_engine(directory, device="cpu", threads=1, max_batch=4)
    try:
        episodes = await asyncio.gather(*(_rollout(engine, member, temperature) for member in range(4)))
    finally:
        engine.close()
    return credit_groups.group(*episodes)


async def _rollout(engine, member: int, temperature: float):  # type: ignore[no-untyped-def]
    calls = []
    prompt = engine.tokenizer.encode("Tom has 23 apples. How many are left?")
    for turn in range(3):
        params = SamplingParams(
            temperature=temperature, top_p=1.0, seed=10 * member + turn, max_tokens=6 + member
        )
        deltas = [delta async for delta in engine.generate(prompt, 1, params)]
        tokens = [token for delta in deltas for token in delta.tokens]
        calls.append(
            credit_groups.call(
                float(member) if turn == 2 else 0.0,
                prompt_token_ids=prompt,
                response_token_ids=[token.id for token in tokens],
                response_logprobs=[token.logprob for token in tokens],
            )
        )
        prompt = [*prompt, *(token.id for token in tokens), *engine.tokenizer.encode(" It is 4.")]
    return credit_groups.rollout(f"r{member}", *calls)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_importance_ratios_of_sampled_tokens_are_one(tmp_path: Path, temperature: float) -> None:
    torch.set_num_threads(1)
    model = save_tiny_model(tmp_path / "model")
    group = await _sampled(model, temperature)
    trainer = TorchRLTrainer()
    trainer.open(replace(run_of(tmp_path, model, KeepingPublisher()), temperature=temperature))
    metrics = trainer.consume([group]).metrics
    trainer.close()
    assert metrics["tokens_trained"] > 60
    assert metrics["tokens_saved_by_prefixes"] > 0
    assert metrics["tokens_saved_by_merging"] > 0
    # |log ratio| < 1e-3 at every token, so every ratio is within 1e-3 of one
    assert metrics["engine_gap.most"] < 1e-3
    assert metrics["importance_weight.most"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["tokens_without_behaviour_logprob"] == 0
