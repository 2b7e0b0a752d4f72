"""The backend that a run was asked for, as a trainer; what cannot train is refused with the reason."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any, Final

from lightning_sdk.errors import ConfigError, PluginError
from lightning_sdk.plugins import BACKENDS, Trainer, find

_MEMBERS: Final = ("open", "consume", "save", "restore", "export", "close", "serves")


def find_trainer(name: str) -> type[Trainer]:
    """The class of the backend called `name`.

    Raises:
        PluginError: there is none, it does not load, or something that it needs is missing.
        ConfigError: it does not train.
    """
    plugin = find(BACKENDS, name)
    backend = plugin.load()
    mode = getattr(backend, "mode", None)
    if mode == "offline":
        raise ConfigError(
            f"backend {name!r} does not train: it takes what is stored, once; run the agent with `lsdk run` and "
            f"hand the rollouts to it with `lsdk export --backend {name}`"
        )
    lacking = [member for member in _MEMBERS if not hasattr(backend, member)]
    if mode != "online" or not isinstance(backend, type) or lacking:
        what = f"it has no {', '.join(lacking)}" if lacking else f"its mode is {mode!r}, not 'online'"
        raise PluginError(f"{name!r} ({plugin.value}, from {plugin.distribution}) is no trainer: {what}")
    trainer: type[Trainer] = backend
    missing = trainer.missing()
    if missing is not None:
        raise PluginError(f"backend {name!r} is not usable: {missing}")
    return trainer


def make_trainer(name: str, trainer: type[Trainer], options: Mapping[str, Any]) -> Trainer:
    """An instance with its options.

    Raises:
        ConfigError: an option that it does not have, needs, or cannot use.
    """
    parameters = list(inspect.signature(trainer).parameters.values())
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        taken = [each.name for each in parameters]
        for option in options:
            if option not in taken:
                near = difflib.get_close_matches(option, taken, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(taken) or 'none'}"
                raise ConfigError(f"[backend] {name!r} has no option {option!r}: {hint}")
        for each in parameters:
            if each.default is each.empty and each.kind is each.KEYWORD_ONLY and each.name not in options:
                raise ConfigError(
                    f"[backend] {name!r} needs {each.name}: give it with -o backend.{each.name}=…"
                )
    return trainer(**options)
