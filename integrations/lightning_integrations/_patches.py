"""Patches on somebody else's classes: put on together, taken off where they are still ours.

Nothing here knows a library. `Patches` keeps owner, name, original and ours of each attribute; `Installation`
has one set of patches on for as long as anybody wants it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import wrapt

from lightning_sdk.errors import PluginError

if TYPE_CHECKING:
    from lightning_sdk.plugins import Recorder, Undo

# As wrapt calls it: (wrapped, instance, args, kwargs).
Wrapper = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Target:
    """An attribute to wrap: it must be defined on `owner` itself, not on a base."""

    owner: Any
    name: str
    wrapper: Wrapper


@dataclass(frozen=True, slots=True)
class Addition:
    """An attribute to add: `owner` must not define it."""

    owner: Any
    name: str
    value: Any


class _Patched(wrapt.FunctionWrapper):  # type: ignore[type-arg]  # generic in wrapt 2 only
    """A wrapper of ours, told from those of others by its class, with its own switch."""

    _self_on: bool

    def __init__(self, wrapped: Any, wrapper: Wrapper) -> None:
        super().__init__(wrapped, wrapper, enabled=lambda: self._self_on)
        self._self_on = True


class Patches:
    """A set of patches.

    Raises:
        PluginError: an owner does not define what is wrapped, or defines what is added. Nothing was changed.
    """

    def __init__(self, targets: Sequence[Target | Addition]) -> None:
        added = [target for target in targets if isinstance(target, Addition)]
        for addition in added:
            if addition.name in vars(addition.owner):
                raise PluginError(f"{_name(addition)} is taken")
        self._patches = [
            (target.owner, target.name, *_wrap(target)) for target in targets if isinstance(target, Target)
        ]
        self._added = added
        for addition in added:
            setattr(addition.owner, addition.name, addition.value)
        for owner, name, _, ours in self._patches:
            setattr(owner, name, ours)

    def undo(self) -> None:
        """Put each original back where our wrapper is still in its place; elsewhere switch ours off.

        Somebody who wrapped over us holds our wrapper: assigning the original would take theirs off too.
        """
        for owner, name, original, ours in self._patches:
            ours._self_on = False
            if owner.__dict__.get(name) is ours:
                setattr(owner, name, original)
        for addition in self._added:
            if vars(addition.owner).get(addition.name) is addition.value:
                delattr(addition.owner, addition.name)


def _name(target: Target | Addition) -> str:
    owner = target.owner  # a class, or a module
    return (
        f"{owner.__module__}.{owner.__qualname__}.{target.name}"
        if isinstance(owner, type)
        else f"{owner.__name__}.{target.name}"
    )


def _wrap(target: Target) -> tuple[Any, _Patched]:
    try:
        original = target.owner.__dict__[target.name]
    except KeyError:
        raise PluginError(f"there is no {_name(target)}") from None
    # What is left of an earlier installation, once those who had wrapped over it are gone.
    while isinstance(original, _Patched) and not original._self_on:
        original = original.__wrapped__
    return original, _Patched(original, target.wrapper)


class Installation:
    """The patches of one library, on while a recorder is installed. The latest recorder receives.

    One for each library, made where its module is imported, which lives as long as the process.
    """

    def __init__(self, make_targets: Callable[[], Sequence[Target | Addition]]) -> None:
        self._make_targets = make_targets
        self._lock = threading.Lock()
        self._patches: Patches | None = None
        self._recorders: list[tuple[object, Recorder]] = []
        # Read without the lock by every call.
        self.recorder: Recorder | None = None
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def install(self, recorder: Recorder) -> Undo:
        """Patch, unless the patches are on already, and make `recorder` the one that receives.

        Returns:
            What takes this recorder away again, and with the last one the patches. It may be called twice.

        Raises:
            PluginError: the library does not have what the patches need; nothing was changed.
        """
        key = object()
        # Before the lock: this imports the library, and its import may have somebody else install us.
        targets = self._make_targets()
        with self._lock:
            if self._patches is None:
                self._patches = Patches(targets)
            self._recorders.append((key, recorder))
            self.recorder = recorder
        return lambda: self._remove(key)

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def _remove(self, key: object) -> None:
        with self._lock:
            self._recorders = [entry for entry in self._recorders if entry[0] is not key]
            self.recorder = self._recorders[-1][1] if self._recorders else None
            if self._patches is not None and not self._recorders:
                self._patches.undo()
                self._patches = None
