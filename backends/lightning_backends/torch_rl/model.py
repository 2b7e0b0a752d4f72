"""A causal language model of Hugging Face, taken apart into trunk and head, with or without adapters."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from lightning_backends.torch_rl.options import Options
from lightning_sdk.errors import ConfigError

# How a model's config.json says that it changes logits behind the head: name, and what happens.
_SOFTCAP: Final = "final_logit_softcapping"
_FACTOR: Final = "logit_scale"
_DIVISOR: Final = "logits_scaling"


class LanguageModel:
    """Weights, and what they compute: hidden states, and logits from them.

    No dropout is ever applied, since ratios compare two passes over the same tokens.

    Attributes:
        network: the transformers model; adapters, where there are any, sit inside it.
        adapters: peft's view of it; None where all weights are trained.
        directory: where it came from.
        autocast: the type of the arithmetic; None where it is that of the weights.
        plain_config: the config as the model came, with whatever dropout it has.
    """

    def __init__(
        self,
        network: Any,
        adapters: Any | None,
        directory: Path,
        autocast: torch.dtype | None,
        plain_config: Any,
    ) -> None:
        self.network = network
        self.adapters = adapters
        self.directory = directory
        self.autocast = autocast
        self.plain_config = plain_config
        self._settings = network.config.get_text_config()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device(self.network.device)

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self._settings.hidden_size)

    @property
    def vocabulary(self) -> int:
        """V."""
        return int(self._settings.vocab_size)

    @property
    def context_length(self) -> int | None:
        """Positions that the model knows; None where it does not say."""
        known = getattr(self._settings, "max_position_embeddings", None)
        return known if isinstance(known, int) and known > 0 else None

    @property
    def plain_length(self) -> int | None:
        """Up to which length a token sees all before it; None where that has no end."""
        names = ["attention_chunk_size"]
        if getattr(self._settings, "use_sliding_window", True):
            names.append("sliding_window")
        limits = [getattr(self._settings, name, None) for name in names]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is trained, by name."""
        return {name: each for name, each in self.network.named_parameters() if each.requires_grad}

    def hidden(self, token_T: Tensor, position_T: Tensor, mask_TT: Tensor | None) -> Tensor:
        """The last hidden state of each token, shape (T, H).

        Args:
            token_T: token ids.
            position_T: of each, from 0.
            mask_TT: True where the row's token sees the column's; None: all before it.
        """
        mask = None
        if mask_TT is not None:
            kind = self.autocast or self.network.dtype
            mask = torch.zeros(mask_TT.shape, dtype=kind, device=self.device)
            mask = mask.masked_fill_(~mask_TT, torch.finfo(kind).min)[None, None]
        with self.arithmetic():
            output = self.network.base_model(
                input_ids=token_T[None],
                position_ids=position_T[None],
                attention_mask=mask,
                use_cache=False,
            )
        states: Tensor = output.last_hidden_state[0]
        return states

    def logits(self, hidden_KH: Tensor) -> Tensor:
        """Logits over the vocabulary, shape (K, V), in float32 or finer."""
        with self.arithmetic():
            raw: Tensor = self.network.get_output_embeddings()(hidden_KH)
        logits = raw.to(torch.promote_types(raw.dtype, torch.float32))
        if (factor := getattr(self._settings, _FACTOR, None)) is not None:
            logits = logits * factor
        if (divisor := getattr(self._settings, _DIVISOR, None)) is not None:
            logits = logits / divisor
        if (cap := getattr(self._settings, _SOFTCAP, None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    @contextlib.contextmanager
    def without_adapters(self) -> Iterator[None]:
        """The model as it was before training; only where there are adapters."""
        assert self.adapters is not None
        with self.adapters.disable_adapter():
            yield

    def arithmetic(self) -> contextlib.AbstractContextManager[Any]:
        """While it lasts, torch computes in `autocast`."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast)


def load_model(directory: Path, options: Options, *, trained: bool = True) -> LanguageModel:
    """Load a model to train, or to compare with.

    Args:
        directory: config.json and safetensors weights.
        options: device, precision, attention, adapters.
        trained: False: no gradient, no adapters.

    Raises:
        ConfigError: it cannot be loaded or trained that way; the message says what to change.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    device = choose_device(options)
    half = _is_half(options, device)
    with_adapters = trained and options.lora_rank is not None
    # What is trained has float32 weights; what is not need not.
    kind = torch.bfloat16 if half and (with_adapters or not trained) else torch.float32
    try:
        network: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=kind,
            attn_implementation=None if options.attention == "auto" else options.attention,
            local_files_only=True,
            use_safetensors=True,  # the other format is a pickle
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ConfigError(f"{directory}: its model does not load: {_one_line(error)}") from error
    plain_config = copy.deepcopy(network.config)
    _take_out_dropout(network)
    network.to(device).eval()
    adapters = None
    if with_adapters:
        adapters = _add_adapters(network, options, directory)
    else:
        network.requires_grad_(trained)
    if trained and options.gradient_checkpointing:
        _recompute_activations(network, directory)
    return LanguageModel(network, adapters, directory, torch.bfloat16 if half else None, plain_config)


def choose_device(options: Options) -> torch.device:
    """Where to train.

    Raises:
        ConfigError: a GPU was asked for, and there is none.
    """
    cuda = torch.cuda.is_available()
    if options.device == "cuda" and not cuda:
        raise ConfigError("device is cuda, and torch sees no CUDA device here; give device=cpu or auto")
    return torch.device("cuda" if cuda and options.device != "cpu" else "cpu")


def missing_peft() -> str | None:
    """What to install for adapters; None where it is there."""
    if find_spec("peft") is None:
        return "lora_rank needs peft, which is not installed: pip install 'agent-lightning-sdk[lora]'"
    return None


def _is_half(options: Options, device: torch.device) -> bool:
    if options.precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return options.precision == "bfloat16"


def _take_out_dropout(network: Any) -> None:
    """Set every probability of dropout to 0."""
    for config in {id(each): each for each in (network.config, network.config.get_text_config())}.values():
        for name, value in vars(config).items():
            if isinstance(value, float) and (name.endswith("dropout") or name.endswith("pdrop")):
                setattr(config, name, 0.0)
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def _add_adapters(network: Any, options: Options, directory: Path) -> Any:
    if (problem := missing_peft()) is not None:
        raise ConfigError(problem)
    from peft import LoraConfig, get_peft_model

    rank = options.lora_rank or 0
    settings = LoraConfig(
        r=rank,
        lora_alpha=options.lora_alpha or 2 * rank,  # type: ignore[arg-type]
        lora_dropout=0.0,
        target_modules=list(options.lora_targets) if options.lora_targets else "all-linear",
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(network, settings)
    except ValueError as error:
        raise ConfigError(f"{directory}: no adapters can be added: {_one_line(error)}") from error


def _recompute_activations(network: Any, directory: Path) -> None:
    if not network.supports_gradient_checkpointing:
        raise ConfigError(
            f"{directory}: gradient_checkpointing does nothing for {type(network).__name__}; leave it out"
        )
    network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    network.train()  # transformers recomputes in this mode only; there is no dropout left in it


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
