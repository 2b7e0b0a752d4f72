"""One token for each row of logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lightning_sdk.policy.engine import SampledToken, SamplingParams


def make_generator(seed: int | None, choice: int) -> torch.Generator:
    """The source of a choice's random numbers. On the CPU, so that a seed says the same on every device."""
    if seed is None:
        raise ValueError("this engine samples from a seed alone: draw one")
    # An odd multiplier keeps (seed, choice) pairs apart for all practical n; the mask fits what torch takes.
    return torch.Generator().manual_seed((seed + choice * 0x9E3779B97F4A7C15) & (2**63 - 1))


def sample(
    logits: torch.Tensor, params: Sequence[SamplingParams], generators: Sequence[torch.Generator]
) -> list[SampledToken]:
    """Sample one token a row.

    Args:
        logits: (B, V), any floating type; computed in float32.
        params: B of them.
        generators: B of them; a row takes one number from its own, unless it is greedy.

    Returns:
        B tokens with their log probabilities, as `SamplingParams` defines them.
    """
    logits = logits.float()
    temperatures = torch.tensor(
        [row.temperature or 1.0 for row in params], dtype=torch.float32, device=logits.device
    )
    # The largest logit becomes 0 first, so that a small temperature divides into -inf and never into NaN.
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperatures[:, None]
    logprobs = torch.log_softmax(scaled, dim=-1)
    chosen = torch.stack(
        [
            logprobs[row].argmax() if how.greedy else _draw(logprobs[row], how.top_p, generators[row])
            for row, how in enumerate(params)
        ]
    )
    values = logprobs.gather(-1, chosen[:, None])[:, 0].tolist()
    return [
        SampledToken(token, value, _likeliest(logprobs[row], params[row].top_logprobs))
        for row, (token, value) in enumerate(zip(chosen.tolist(), values, strict=True))
    ]


def _draw(logprobs: torch.Tensor, top_p: float, generator: torch.Generator) -> torch.Tensor:
    """One index, by inverting the cumulative distribution (float64: 50,000 float32 summands drift)."""
    point = torch.rand((), generator=generator, dtype=torch.float64).to(logprobs.device)
    probabilities = logprobs.double().exp()
    if top_p == 1:
        return _invert(probabilities, point)
    ordered, index = probabilities.sort(descending=True, stable=True)
    # A token is kept while those before it do not reach top_p yet; so the likeliest always is.
    kept = int((ordered.cumsum(0) - ordered < top_p).sum())
    return index[_invert(ordered[:kept], point)]


def _invert(probabilities: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
    cumulative = probabilities.cumsum(0)
    place = torch.searchsorted(cumulative, point * cumulative[-1], right=True)
    return place.clamp(max=len(probabilities) - 1)


def _likeliest(logprobs: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    values, tokens = logprobs.topk(min(count, len(logprobs)))
    return tuple(zip(tokens.tolist(), values.tolist(), strict=True))
