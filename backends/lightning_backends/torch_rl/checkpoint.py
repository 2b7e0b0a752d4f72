"""All that the next round depends on, in a directory: safetensors and JSON, never a pickle.

trainer.json                  format, and each policy's version, steps and folder
random.safetensors            states of torch's generators
0/weights/                    a Hugging Face model, or adapters as peft writes them
0/optimiser.safetensors       <parameter>.exp_avg, .exp_avg_sq, .step
0/value_head.safetensors      with credit turn_gae
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from lightning_backends.torch_rl.policy import TrainedPolicy
from lightning_sdk.errors import RunError

FORMAT: Final = 1
_INDEX: Final = "trainer.json"
_RANDOM: Final = "random.safetensors"


def save_checkpoint(
    directory: Path, policies: Mapping[str, TrainedPolicy], generator: torch.Generator
) -> None:
    """Write into a directory that exists and is empty; the index comes last."""
    index: dict[str, Any] = {"format": FORMAT, "policies": {}}
    for number, (name, policy) in enumerate(policies.items()):
        folder = directory / str(number)
        _save_policy(folder, policy)
        index["policies"][name] = {
            "folder": folder.name,
            "version": policy.version,
            "steps": policy.steps,
            "adapters": policy.model.adapters is not None,
            "value_head": policy.value_head is not None,
        }
    save_file(_random_states(generator), directory / _RANDOM)
    (directory / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


def restore_checkpoint(
    directory: Path, policies: Mapping[str, TrainedPolicy], generator: torch.Generator
) -> None:
    """Go on from what `save_checkpoint` wrote.

    Raises:
        RunError: it is no checkpoint, or one of other policies or another way to train.
    """
    try:
        index = json.loads((directory / _INDEX).read_text())
        if index["format"] != FORMAT:
            raise RunError(
                f"{directory}: the checkpoint has format {index['format']}; this version reads {FORMAT}"
            )
        _check_policies(directory, index["policies"], policies)
        for name, about in index["policies"].items():
            _restore_policy(directory / str(int(about["folder"])), policies[name], about)
        states = load_file(directory / _RANDOM)
        generator.set_state(states["shuffle"])
        torch.set_rng_state(states["cpu"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(
            f"{directory}: it is no checkpoint of torch_rl, or a damaged one "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); resume from an earlier one"
        ) from error


def _check_policies(directory: Path, saved: Mapping[str, Any], policies: Mapping[str, TrainedPolicy]) -> None:
    if set(saved) != set(policies):
        raise RunError(
            f"{directory}: the checkpoint is of the policies {', '.join(sorted(saved))}, and this run trains "
            f"{', '.join(sorted(policies))}; resume with the settings of the run"
        )
    for name, policy in policies.items():
        for part, present in (
            ("adapters", policy.model.adapters is not None),
            ("value_head", policy.value_head is not None),
        ):
            if bool(saved[name][part]) != present:
                has = "has" if saved[name][part] else "has no"
                raise RunError(
                    f"{directory}: policy {name!r} {has} {part.replace('_', ' ')} in the checkpoint, unlike in this "
                    "run; resume with the options of the run"
                )


def _save_policy(folder: Path, policy: TrainedPolicy) -> None:
    weights = folder / "weights"
    weights.mkdir(parents=True)
    if policy.model.adapters is not None:
        policy.model.adapters.save_pretrained(weights, save_embedding_layers=False)
    else:
        policy.model.network.save_pretrained(weights)
    tensors: dict[str, Tensor] = {}
    for name, parameter in policy.trained().items():
        for key, value in policy.optimiser.state.get(parameter, {}).items():
            tensors[f"{name}.{key}"] = value.detach().contiguous()
    save_file(tensors, folder / "optimiser.safetensors")
    if policy.value_head is not None:
        save_file(policy.value_head.state_dict(), folder / "value_head.safetensors")


def _restore_policy(folder: Path, policy: TrainedPolicy, about: Mapping[str, Any]) -> None:
    if policy.model.adapters is not None:
        from peft import set_peft_model_state_dict

        adapters = load_file(folder / "weights" / "adapter_model.safetensors")
        set_peft_model_state_dict(policy.model.adapters, adapters)
    else:
        saved: Any = AutoModelForCausalLM.from_pretrained(
            folder / "weights", dtype=policy.model.network.dtype, local_files_only=True, use_safetensors=True
        )
        policy.model.network.load_state_dict(saved.state_dict())
    if policy.value_head is not None:
        policy.value_head.load_state_dict(load_file(folder / "value_head.safetensors"))
    _restore_optimiser(load_file(folder / "optimiser.safetensors"), policy)
    policy.version = int(about["version"])
    policy.steps = int(about["steps"])


def _restore_optimiser(tensors: Mapping[str, Tensor], policy: TrainedPolicy) -> None:
    names = {id(parameter): name for name, parameter in policy.trained().items()}
    ordered = [names[id(each)] for group in policy.optimiser.param_groups for each in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for at, name in enumerate(ordered):
        found = {
            key: tensors[f"{name}.{key}"]
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"{name}.{key}" in tensors
        }
        if found:
            state[at] = found
    groups = policy.optimiser.state_dict()["param_groups"]
    policy.optimiser.load_state_dict({"state": state, "param_groups": groups})


def _random_states(generator: torch.Generator) -> dict[str, Tensor]:
    states = {"shuffle": generator.get_state(), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states
