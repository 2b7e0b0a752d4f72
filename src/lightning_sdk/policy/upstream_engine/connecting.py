"""Looking at an upstream server before it is used: which model, how much context, and what its numbers mean."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from lightning_sdk.errors import ConfigError
from lightning_sdk.policy.engine import SamplingParams
from lightning_sdk.policy.errors import ApiError
from lightning_sdk.policy.huggingface_tokenizer import load_tokenizer
from lightning_sdk.policy.upstream_engine.client import UpstreamClient
from lightning_sdk.policy.upstream_engine.completions import request_body, sampled_tokens
from lightning_sdk.policy.upstream_engine.engine import UpstreamEngine

# Two log probabilities that are further apart are of two distributions.
_SAME = 1e-4


def connect_engine(
    directory: Path,
    url: str,
    *,
    token: str | None = None,
    max_choices: int = 272,
    silence_timeout_s: float = 600,
) -> UpstreamEngine:
    """An engine over the server at `url`, which serves the model of `directory`.

    Args:
        directory: the model, for its tokenizer and template; the server loaded the same one.
        url: of the server's API, such as http://127.0.0.1:8000/v1.
        token: its API key, where it has one.
        max_choices: that may run there and wait here together; beyond them 429.
        silence_timeout_s: how long the server may say nothing while it works.

    Raises:
        ConfigError: it cannot be reached, or does not answer as vLLM does.
    """
    tokenizer = load_tokenizer(directory)
    config = json.loads((directory / "config.json").read_bytes())
    seen: dict[str, Any] = asyncio.run(_look(url, token, silence_timeout_s))
    return UpstreamEngine(
        UpstreamClient(url, token, silence_timeout_s=silence_timeout_s),
        tokenizer,
        weights=directory.resolve(),
        vocabulary=(config.get("text_config") or config)["vocab_size"],
        max_choices=max_choices,
        **seen,
    )


async def _look(url: str, token: str | None, silence_timeout_s: float) -> dict[str, Any]:
    client = UpstreamClient(url, token, silence_timeout_s=silence_timeout_s)
    try:
        models = await client.models()
        if not models:
            raise ConfigError(f"the upstream {url} serves no model: start it with one")
        model, context = models[0].get("id"), models[0].get("max_model_len")
        if not isinstance(model, str) or not isinstance(context, int):
            raise ConfigError(
                f"the upstream {url} does not tell its model's name and max_model_len: it must answer as vLLM does"
            )
        return {
            "model": model,
            "context_length": context,
            "raw_logprobs": await _tells_raw_logprobs(client, model),
        }
    except ApiError as error:
        raise ConfigError(f"the upstream {url} cannot be used: {error.message}") from error
    finally:
        await client.close()


async def _tells_raw_logprobs(client: UpstreamClient, model: str) -> bool:
    """Whether log probabilities are those before temperature: then the likeliest token's never depends on it."""
    for prompt in ([1, 2], [3], [5, 4, 3]):
        likeliest = []
        for temperature in (1.0, 0.5):
            params = SamplingParams(temperature=temperature, top_p=1, seed=None, max_tokens=1, top_logprobs=1)
            answer = await client.complete(request_body(model, prompt, 1, params))
            (token,) = sampled_tokens(answer["choices"][0], 1)
            likeliest.append(token.top[0][1])
        if abs(likeliest[0] - likeliest[1]) > _SAME:
            return False
    return True
