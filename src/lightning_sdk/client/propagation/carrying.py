"""What all patches share: whether anything is carried, and how a task runs in the scope it was given in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lightning_sdk.client.scope import Scope, get_current, set_current


class _Switch:
    """A wrapper of ours may be in the hands of others for ever; off, it passes everything through."""

    on = False


switch: Final = _Switch()

# Whose threads and processes are no task: they serve whoever comes, and start empty.
_SERVANTS: Final = (
    "anyio",
    "asyncio",
    "concurrent.futures",
    "grpc",
    "lightning_integrations",
    "lightning_sdk",
    "logging",
    "multiprocessing",
    "opentelemetry",
    "tqdm",
)


def carried_scope() -> Scope | None:
    """The scope that what is started now works for."""
    return get_current() if switch.on else None


def is_servant(worker: object) -> bool:
    """Whether a thread or process that is about to start is one of a pool, or the like."""
    target = getattr(worker, "_target", None)
    module = getattr(target if target is not None else type(worker), "__module__", None)
    return isinstance(module, str) and any(
        module == name or module.startswith(f"{name}.") for name in _SERVANTS
    )


def call_in(scope: Scope, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function` in a scope; afterwards there is the one of before."""
    before = get_current()
    try:
        set_current(scope)
        return function(*args, **kwargs)
    finally:
        set_current(before)
