"""The model that a policy is held close to: the policy without its adapters, or a copy that never changes."""

from __future__ import annotations

import contextlib
from pathlib import Path

from lightning_backends.torch_rl.model import LanguageModel, load_model
from lightning_backends.torch_rl.options import Options
from lightning_sdk.errors import ConfigError


class Reference:
    """Log probabilities of the reference: use `model` within `active`."""

    def __init__(self, model: LanguageModel, *, is_policy: bool) -> None:
        self.model = model
        self._is_policy = is_policy

    def active(self) -> contextlib.AbstractContextManager[None]:
        """While it lasts, `model` computes what the reference does."""
        return self.model.without_adapters() if self._is_policy else contextlib.nullcontext()


def load_reference(policy: LanguageModel, options: Options) -> Reference | None:
    """The reference of a policy that has not been trained yet; None where none is needed.

    Raises:
        ConfigError: it does not load, or has another vocabulary.
    """
    if options.kl_coefficient == 0:
        return None
    if options.reference is None and policy.adapters is not None:
        return Reference(policy, is_policy=True)
    directory = policy.directory if options.reference is None else Path(options.reference).expanduser()
    model = load_model(directory, options, trained=False)
    if model.vocabulary != policy.vocabulary:
        raise ConfigError(
            f"reference {str(directory)!r} has a vocabulary of {model.vocabulary} tokens and the policy "
            f"{policy.vocabulary}; give a model with the same tokenizer"
        )
    return Reference(model, is_policy=False)
