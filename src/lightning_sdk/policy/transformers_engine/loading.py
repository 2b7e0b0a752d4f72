"""From a Hugging Face model directory to an engine, or one sentence that says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from lightning_sdk.errors import ConfigError
from lightning_sdk.policy.huggingface_tokenizer import HuggingFaceTokenizer, load_tokenizer, one_line
from lightning_sdk.policy.transformers_engine.forward import BatchedModel
from lightning_sdk.policy.transformers_engine.loop import TransformersEngine

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def load_engine(
    directory: Path,
    *,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: int | None = None,
    max_batch: int = 16,
    max_queue: int = 256,
) -> TransformersEngine:
    """Load a causal language model and its tokenizer, and start the thread that samples.

    Args:
        directory: config.json, safetensors weights, tokenizer with a chat template.
        device: "auto" is CUDA where there is one.
        dtype: of the weights; "auto" is float32 on the CPU and what the weights were saved in on CUDA.
        threads: for torch on the CPU; None: torch's own choice.
        max_batch: answers that are sampled at once.
        max_queue: answers that may wait.

    Raises:
        ConfigError: it cannot be loaded, or works in no batch.
    """
    chosen = _choose_device(device)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if threads is not None:
        torch.set_num_threads(threads)
    tokenizer = load_tokenizer(directory)
    model = _load_model(directory, dtype, chosen)
    batched = BatchedModel(model, slots=2 * max_batch)
    batched.check()
    return TransformersEngine(
        batched,
        tokenizer,
        context_length=_context_length(model.config),
        end_ids=_end_ids(model, tokenizer),
        threads=threads,
        max_batch=max_batch,
        max_queue=max_queue,
    )


def _choose_device(device: Device) -> torch.device:
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ConfigError("--device cuda: torch sees no CUDA device here; use --device cpu or auto")
    return torch.device("cuda" if cuda and device != "cpu" else "cpu")


def _load_model(directory: Path, dtype: Dtype, device: torch.device) -> Any:
    if dtype == "auto":
        chosen: Any = torch.float32 if device.type == "cpu" else "auto"
    else:
        chosen = getattr(torch, dtype)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=chosen,
            local_files_only=True,
            use_safetensors=True,  # the other format is a pickle
        )
        return model.to(device).eval()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ConfigError(f"{directory}: its model does not load: {one_line(error)}") from error


def _context_length(config: Any) -> int:
    """Positions that the model knows, but no more than its sliding window: within it attention is plain."""
    text = config.get_text_config()
    limits = [getattr(text, name, None) for name in ("max_position_embeddings", "attention_chunk_size")]
    if getattr(text, "use_sliding_window", True):
        limits.append(getattr(text, "sliding_window", None))
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    if not known:
        raise ConfigError("the model's config.json has no max_position_embeddings, so its context is unknown")
    return min(known)


def _end_ids(model: Any, tokenizer: HuggingFaceTokenizer) -> frozenset[int]:
    """The tokens with which a turn ends."""
    generation = getattr(model, "generation_config", None)
    ends: set[int] = set()
    for ids in (getattr(generation, "eos_token_id", None), tokenizer.end_id):
        ends.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(ends)
