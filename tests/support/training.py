"""What a trainer's tests need: a tiny Llama, rollouts with tokens, and a publisher that keeps what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_sdk.mdp import Episode, Group, Transition
from lightning_sdk.plugins import Probe, TrainingRun
from support import credit_groups

VOCABULARY = 97


def save_llama(directory: Path, *, layers: int = 2, seed: int = 0, **config: Any) -> Path:
    """About 60,000 weights, far enough from uniform that neighbours and positions matter."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            **{
                "vocab_size": VOCABULARY,
                "hidden_size": 48,
                "intermediate_size": 96,
                "num_hidden_layers": layers,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 256,
                "initializer_range": 0.2,
                "tie_word_embeddings": False,
                **config,
            }
        )
    )
    model.save_pretrained(directory)
    return directory


def use_float64(model: Any) -> None:
    """Everything in float64, the norms too, which Llama computes in float32 whatever its weights are."""
    import torch

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                norm = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(parent, name, norm)
    model.double()


@dataclass
class KeepingPublisher:
    """Loads what it is given, as an endpoint would, and remembers it."""

    published: list[tuple[str, int]] = field(default_factory=list)
    weights: dict[str, dict[str, Any]] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)

    def publish(self, policy: str, weights: Path, *, version: int, probe: Probe | None = None) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(weights)
        self.weights[policy] = {name: value.clone() for name, value in model.state_dict().items()}
        self.published.append((policy, version))
        if probe is not None:
            self.probes.append(probe)
            _check_probe(model, probe)


def run_of(
    directory: Path,
    model: Path,
    publisher: KeepingPublisher,
    *,
    policies: Sequence[str] = ("tiny",),
    **fields: Any,
) -> TrainingRun:
    values: dict[str, Any] = {
        "run_id": "run_1",
        "directory": directory,
        "policies": dict.fromkeys(policies, model),
        "temperature": 1.0,
        "max_tokens": 128,
        "seed": 0,
        "publisher": publisher,
        **fields,
    }
    return TrainingRun(**values)


def make_groups(
    *,
    groups: int = 2,
    rollouts: int = 3,
    turns: int = 3,
    seed: int = 0,
    merged: bool = True,
    policies: Sequence[str] = ("tiny",),
) -> list[Group]:
    """Rollouts of several turns over random tokens, with rewards that differ.

    Prompts of a group begin alike. With `merged`, a turn's prompt goes on from the turn before it.
    """
    draw = np.random.default_rng(seed)
    made = []
    for at in range(groups):
        stem = _draw(draw, 9)
        episodes = [
            _rollout(f"g{at}r{member}", stem, turns + member % 2, member, draw, merged, policies)
            for member in range(rollouts)
        ]
        made.append(credit_groups.group(*episodes, group_id=f"g{at}"))
    return made


def _rollout(
    name: str,
    stem: list[int],
    turns: int,
    member: int,
    draw: np.random.Generator,
    merged: bool,
    policies: Sequence[str],
) -> Episode:
    calls = []
    history = list(stem)
    for turn in range(turns):
        prompt = history if merged else [*stem, *_draw(draw, 3 + turn)]
        response = _draw(draw, 3 + (member + turn) % 4)
        policy = policies[turn % len(policies)]
        calls.append(
            credit_groups.call(
                float(member) + 0.5 * turn if turn == turns - 1 else 0.0,
                agent=policy,
                policy=policy,
                prompt_token_ids=prompt,
                response_token_ids=response,
                response_logprobs=(-4.5 + 0.3 * draw.standard_normal(len(response))).tolist(),
            )
        )
        history = [*prompt, *response, *_draw(draw, 4)]
    return credit_groups.rollout(name, *calls)


def _draw(draw: np.random.Generator, count: int) -> list[int]:
    return draw.integers(3, VOCABULARY, count).tolist()


def _check_probe(model: Any, probe: Probe) -> None:
    import torch

    for ids, expected in zip(probe.token_ids, probe.logprobs, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([list(ids)])).logits[0, :-1].float()
        found = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), list(ids[1:])]
        assert (found - torch.tensor(list(expected))).abs().max() <= probe.tolerance


def state_of(transition: Transition) -> int:
    """A state that calls share: how far the rollout is."""
    return transition.step
