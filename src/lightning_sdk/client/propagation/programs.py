"""Programs that `subprocess` starts: they find the scope in their environment, and nowhere is ours changed."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, Final

from lightning_sdk.client import config, faults
from lightning_sdk.client.propagation.carrying import carried_scope
from lightning_sdk.client.propagation.context import encode, scope_of_program, settings_for
from lightning_sdk.client.scope import set_current

VARIABLE: Final = "LIGHTNING_CONTEXT"


def carrying_init(original: Callable[..., None]) -> Callable[..., None]:
    """`Popen.__init__` that adds the variable to the environment of the program."""
    # Counted without `self`.
    place = list(inspect.signature(original).parameters).index("env") - 1

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with faults.guard("propagation"):
            text = _text()
            if text is not None:
                given = args[place] if len(args) > place else kwargs.get("env")
                env = {**(os.environ if given is None else given), VARIABLE: text}
                if len(args) > place:
                    args = (*args[:place], env, *args[place + 1 :])
                else:
                    kwargs["env"] = env
        original(self, *args, **kwargs)

    return init


def _text() -> str | None:
    scope = carried_scope()
    if scope is None:
        return None
    settings = settings_for(scope, private=False)
    return None if settings is None else encode(scope, settings)


def adopt_environment() -> None:
    """Make the scope that the environment names the current one of this context, which is the program's first."""
    text = os.environ.get(VARIABLE)
    with faults.guard("propagation"):
        if text and config.propagates():
            set_current(scope_of_program(text))
