"""A policy as a Hugging Face directory: what an engine loads, adapters merged in, with the tokenizer's files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from lightning_backends.torch_rl.model import LanguageModel
from lightning_backends.torch_rl.options import Options

# Files of a model directory that are weights, in any format, or that we write ourselves.
_OWN_FILES: Final = ("config.json", "generation_config.json")
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")


def write_model(model: LanguageModel, directory: Path, options: Options) -> None:
    """Write weights, config and tokenizer into a directory that exists."""
    kind = published_dtype(model, options)
    state = {
        name: value.to(kind) if value.is_floating_point() else value for name, value in merged(model).items()
    }
    config, model.network.config = model.network.config, model.plain_config
    try:
        model.network.save_pretrained(directory, state_dict=state)
    finally:
        model.network.config = config
    _write_dtype(directory / "config.json", kind)
    copy_tokenizer(model.directory, directory)


def published_dtype(model: LanguageModel, options: Options) -> torch.dtype:
    """The type of weights that others load."""
    if options.publish_dtype != "auto":
        kind: torch.dtype = getattr(torch, options.publish_dtype)
        return kind
    if model.device.type == "cpu":
        own: torch.dtype = model.network.dtype
        return own
    start = getattr(model.plain_config, "dtype", None)
    return start if isinstance(start, torch.dtype) else torch.float32


def merged(model: LanguageModel) -> dict[str, Tensor]:
    """All weights by their names in the model without adapters. The model is not touched."""
    state: dict[str, Any] = model.network.state_dict()
    if model.adapters is None:
        return state
    deltas = {
        name: module.get_delta_weight("default")
        for name, module in model.network.named_modules()
        if hasattr(module, "get_delta_weight")
    }
    found = {}
    for name, value in state.items():
        if ".lora_" in name:
            continue
        owner = name.removesuffix(".base_layer.weight")
        if owner in deltas and owner != name:
            value = (value.to(deltas[owner].dtype) + deltas[owner]).to(value.dtype)
        found[name.replace(".base_layer.", ".")] = value
    return found


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Copy what else lies beside the weights: tokenizer, chat template, licence."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name not in _OWN_FILES and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, directory / path.name)


def _write_dtype(path: Path, kind: torch.dtype) -> None:
    config = json.loads(path.read_text())
    config["dtype"] = str(kind).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
