"""Trained tokens a second: merged rows on packed trees, against one padded row a call, in the same process.

    python benchmarks/train.py                          ten-turn rollouts, a Llama of 5 million random weights
    python benchmarks/train.py --model DIR --turns 1    64 rollouts of one turn, a model of your own

The floor has what a plain trainer has: a row a call with its whole prompt, sorted by length, padded to the longest
of its micro-batch, logits at the trained tokens only, and the same loss, budget of tokens and optimiser step. Every
way is a whole step: forward, backward, clipping, AdamW. Ways take turns, and the best of each counts. Times are CPU
seconds of the process, which neighbours change little; on one thread of a quiet machine they are those of the clock.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lightning_backends.torch_rl.aggregation import token_weights
from lightning_backends.torch_rl.corrections import correct
from lightning_backends.torch_rl.losses import LOSSES, TokenTerms, clip_of
from lightning_backends.torch_rl.metrics import Tally
from lightning_backends.torch_rl.options import Options
from lightning_backends.torch_rl.policy import TrainedPolicy
from lightning_backends.torch_rl.samples import Sample, make_samples
from lightning_backends.torch_rl.update import Updater
from lightning_sdk.mdp.sequences import Row

GOAL = 2.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a Hugging Face directory")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--groups", type=int, default=None, help="8 where there is one turn, else 1")
    parser.add_argument("--rollouts", type=int, default=8, help="of a group")
    parser.add_argument("--prompt", type=int, default=150, help="tokens of the first prompt")
    parser.add_argument("--common", type=int, default=100, help="of them, the same in every group")
    parser.add_argument("--sampled", type=int, default=20, help="tokens of an answer")
    parser.add_argument("--observed", type=int, default=30, help="tokens between two answers")
    parser.add_argument("--budget", type=int, default=None, help="tokens of a forward pass")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as directory:
        measure(arguments, arguments.model or _random_llama(Path(directory)))


def measure(arguments: argparse.Namespace, directory: Path) -> None:
    """All ways, taking turns."""
    groups = arguments.groups or (8 if arguments.turns == 1 else 1)
    options = Options(micro_batch_tokens=arguments.budget)
    policy = TrainedPolicy("bench", directory, options)
    budget = policy.budget or 0
    rows, calls = _rollouts(arguments, groups, policy.model.vocabulary)
    ways = {
        "one padded row a call": lambda: _padded_step(policy, calls, budget),
        "merged, packed": lambda: _our_step(policy, rows, replace(options, share_prefixes=False)),
        "merged, packed, prefixes shared": lambda: _our_step(policy, rows, options),
    }
    ways["merged, packed, prefixes shared"]()  # the optimiser's state, and whatever else is made once
    best: dict[str, float] = {}
    computed: dict[str, int] = {}
    for _ in range(arguments.repeat):
        for name, way in ways.items():
            started = time.process_time()
            computed[name] = way()
            best[name] = min(best.get(name, float("inf")), time.process_time() - started)
    trained = sum(row.trained_tokens for row in rows)
    needed = sum(row.length - 1 for row in calls)
    weights = sum(each.numel() for each in policy.model.network.parameters())
    print(
        f"{groups * arguments.rollouts} rollouts of {arguments.turns} turns, {trained} trained tokens, "
        f"{len(calls)} calls; {weights / 1e6:.0f} million weights, passes of {budget} tokens, "
        f"{arguments.threads} threads"
    )
    print(
        "| a step | tokens computed | padding | CPU s | trained tokens/CPU s | ratio |\n|---|---|---|---|---|---|"
    )
    floor = best["one padded row a call"]
    for name, seconds in best.items():
        padding = 1 - needed / computed[name] if name == "one padded row a call" else 0.0
        print(
            f"| {name} | {computed[name]:,} | {padding:.0%} | {seconds:.2f} | {trained / seconds:,.0f} "
            f"| {floor / seconds:.2f} |"
        )
    ours = floor / min(seconds for name, seconds in best.items() if name.startswith("merged"))
    print(
        f"\nThe goal is {GOAL:g} times one padded row a call ({'met' if ours >= GOAL else 'not met'}: {ours:.1f})."
    )


def _our_step(policy: TrainedPolicy, rows: Sequence[Row], options: Options) -> int:
    policy.options = options
    tally = Tally()
    Updater(policy, temperature=1.0, max_tokens=None).step(make_samples(rows), tally, first=True)
    return int(tally.total("tokens_computed"))


def _padded_step(policy: TrainedPolicy, calls: Sequence[Row], budget: int) -> int:
    """What a trainer does that knows neither merging nor packing."""
    samples = sorted(make_samples(calls), key=lambda sample: len(sample.input_T))
    weights = token_weights(samples, policy.options, None)
    policy.set_learning_rate()
    computed = 0
    batch: list[int] = []
    for at, sample in enumerate(samples):
        if batch and (len(batch) + 1) * len(sample.input_T) > budget:
            computed += _padded_pass(
                policy, [samples[each] for each in batch], [weights[each] for each in batch]
            )
            batch = []
        batch.append(at)
    computed += _padded_pass(policy, [samples[each] for each in batch], [weights[each] for each in batch])
    torch.nn.utils.clip_grad_norm_(list(policy.trained().values()), 1.0)
    policy.optimiser.step()
    policy.optimiser.zero_grad(set_to_none=True)
    return computed


def _padded_pass(policy: TrainedPolicy, batch: Sequence[Sample], weights: Sequence[Any]) -> int:
    longest = max(len(sample.input_T) for sample in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest, dtype=torch.long)
    for at, sample in enumerate(batch):
        ids[at, : len(sample.input_T)] = torch.from_numpy(sample.input_T).long()
        mask[at, : len(sample.input_T)] = 1
    network = policy.model.network
    hidden = network.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    row = torch.cat([torch.full((sample.tokens,), at) for at, sample in enumerate(batch)])
    place = torch.from_numpy(np.concatenate([sample.place_K for sample in batch])) - 1
    token = torch.from_numpy(np.concatenate([sample.token_K for sample in batch]))
    logprob = torch.log_softmax(network.lm_head(hidden[row, place]), -1).gather(1, token[:, None])[:, 0]
    behaviour = torch.from_numpy(np.concatenate([sample.behaviour_K for sample in batch])).float()
    call = torch.from_numpy(np.repeat(np.arange(len(batch)), [sample.tokens for sample in batch]))
    terms = TokenTerms(
        logprob_K=logprob,
        old_K=logprob.detach(),
        advantage_K=torch.from_numpy(np.concatenate([sample.advantage_K for sample in batch])).float(),
        correction_K=correct(logprob.detach(), behaviour, call, len(batch), policy.options),
        call_K=call,
        calls=len(batch),
    )
    loss_K = LOSSES[policy.options.loss](terms, clip_of(policy.options)).loss_K
    (loss_K * torch.from_numpy(np.concatenate(weights)).float()).sum().backward()
    return len(batch) * longest


def _rollouts(arguments: argparse.Namespace, groups: int, vocabulary: int) -> tuple[list[Row], list[Row]]:
    """Merged rows, and the same with a row a call. Answers vary in length by half."""
    draw = np.random.default_rng(0)
    common = draw.integers(1, vocabulary, arguments.common)
    rows, calls = [], []
    for group in range(groups):
        stem = np.concatenate([common, draw.integers(1, vocabulary, arguments.prompt - arguments.common)])
        for member in range(arguments.rollouts):
            name = f"{group}.{member}"
            tokens, masks = [stem], [np.zeros(len(stem), dtype=np.bool_)]
            for turn in range(arguments.turns):
                length = int(draw.integers(arguments.sampled // 2, arguments.sampled * 3 // 2 + 1))
                tokens.append(draw.integers(1, vocabulary, length))
                masks.append(np.ones(length, dtype=np.bool_))
                own = [np.zeros_like(mask) for mask in masks[:-1]] + [masks[-1]]
                calls.append(_row(name, np.concatenate(tokens), np.concatenate(own), draw))
                if turn < arguments.turns - 1:
                    tokens.append(draw.integers(1, vocabulary, arguments.observed))
                    masks.append(np.zeros(arguments.observed, dtype=np.bool_))
            rows.append(_row(name, np.concatenate(tokens), np.concatenate(masks), draw))
    return rows, calls


def _row(rollout: str, tokens: Any, mask: Any, draw: np.random.Generator) -> Row:
    starts = np.cumsum(np.diff(mask.astype(np.int64), prepend=0) == 1) - 1
    return Row(
        rollout_id=rollout,
        policy="bench",
        token_ids_T=tokens.astype(np.int32),
        loss_mask_T=mask,
        behaviour_logprobs_T=np.where(mask, -9.0, np.nan).astype(np.float32),
        advantages_T=np.where(mask, draw.standard_normal(), 0.0),
        policy_versions_T=np.zeros(len(tokens), dtype=np.int64),
        call_T=np.where(mask, starts, -1).astype(np.int32),
        calls=tuple((f"{rollout}.{at}", 0) for at in range(int(starts[-1]) + 1)),
    )


def _random_llama(directory: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192,
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    ).save_pretrained(directory)
    return directory


if __name__ == "__main__":
    main()
