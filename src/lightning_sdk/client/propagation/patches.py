"""The patches of the standard library by which a scope is carried: put in place, taken off, each on its own.

They go in when something is recorded for the first time; those of modules that are not imported yet, when they are.
Whoever patched over one of ours keeps it: then it stays in place, and passes everything through.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NamedTuple

from lightning_sdk.client import faults
from lightning_sdk.client.propagation import processes, programs, threads
from lightning_sdk.client.propagation.carrying import switch


class Patch(NamedTuple):
    """One method that is replaced: where it is, and what makes the replacement of the original."""

    module: str
    owner: str
    method: str
    replace: Callable[[Any], Any]


_POOL_METHODS: Final = (
    "apply_async",
    "map",
    "map_async",
    "starmap",
    "starmap_async",
    "imap",
    "imap_unordered",
)
PATCHES: Final = (
    Patch("threading", "Thread", "start", threads.carrying_start),
    Patch("concurrent.futures.thread", "ThreadPoolExecutor", "submit", threads.carrying_submit),
    Patch("concurrent.futures.process", "ProcessPoolExecutor", "submit", processes.carrying_submit),
    Patch("multiprocessing.process", "BaseProcess", "start", processes.carrying_start),
    *(Patch("multiprocessing.pool", "Pool", name, processes.carrying_pool_method) for name in _POOL_METHODS),
    Patch("subprocess", "Popen", "__init__", programs.carrying_init),
)

_lock = threading.RLock()
# The replacements that are in place, by patch, with their originals.
_placed: dict[Patch, tuple[Any, Any]] = {}
_hooked: set[str] = set()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def install(wanted: bool = True) -> None:
    """Put them in place; where they are not wanted, take them off."""
    if not wanted:
        uninstall()
        return
    with _lock:
        switch.on = True
        for module in dict.fromkeys(patch.module for patch in PATCHES):
            if module in sys.modules:
                _place(sys.modules[module])
            elif module not in _hooked:
                import wrapt

                _hooked.add(module)
                wrapt.register_post_import_hook(_place, module)


def uninstall() -> None:
    """Take them off, where they are still the outermost."""
    with _lock:
        switch.on = False
        for patch, (ours, original) in list(_placed.items()):
            owner = getattr(sys.modules.get(patch.module), patch.owner, None)
            if owner is not None and vars(owner).get(patch.method) is ours:
                setattr(owner, patch.method, original)
                del _placed[patch]


def installed() -> bool:
    """Whether they are in place."""
    return switch.on


def _place(module: ModuleType) -> None:
    if not switch.on:
        return
    for patch in PATCHES:
        if patch.module == module.__name__ and patch not in _placed:
            with faults.guard("propagation"):
                owner = getattr(module, patch.owner)
                original = vars(owner)[patch.method]
                ours = patch.replace(original)
                _placed[patch] = (ours, original)
                setattr(owner, patch.method, ours)
