"""Integrations: found by entry point, installed when their library is imported, each on its own, taken off
again.

A broken or unwilling integration is a state that `lsdk doctor` shows, never an error in the agent. No lock of
ours is held while an integration is loaded or installed: both import modules, and imports have locks of their
own. (The one that keeps a fork out of an import is waited for only so long.)
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from lightning_sdk import plugins
from lightning_sdk.client import faults
from lightning_sdk.client.forks import undivided_import
from lightning_sdk.errors import PluginError

# installed: patched; waiting: its library is not imported yet; off: not chosen; absent: the library is not
# there; failed: it does not fit the library; broken: it does not load.
State = Literal["installed", "waiting", "off", "absent", "failed", "broken"]


@dataclass(frozen=True, slots=True)
class IntegrationStatus:
    """One integration, for `lsdk doctor`. `installed_version` is the library's; None where it is absent."""

    name: str
    target: str
    distribution: str
    versions: str
    installed_version: str | None
    state: State
    detail: str


class _Slot:
    """One integration in this process."""

    def __init__(self, plugin: plugins.Plugin) -> None:
        self.plugin = plugin
        self.integration: plugins.Integration | None = None
        self.wanted = False
        self.hooked = False
        # The thread that has taken it on itself to install, from that moment on.
        self.installer: int | None = None
        self.undo: plugins.Undo | None = None
        self.broken = ""
        self.failed = ""


_lock = threading.Lock()
_slots: dict[str, _Slot] = {}


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for slot in _slots.values():
        # A thread that was installing it has stayed in the parent; this one goes on.
        if slot.undo is None and slot.installer != threading.get_ident():
            slot.installer = None


os.register_at_fork(after_in_child=_after_fork_in_child)


def select(names: Iterable[str] | None) -> None:
    """Have exactly these installed as soon as their libraries are imported; None: all that are found."""
    found = _discover()
    chosen = set(found) if names is None else set(names)
    for name, slot in found.items():
        slot.wanted = name in chosen
        if slot.wanted:
            _want(slot)
        else:
            _undo(slot)


def selected() -> tuple[str, ...]:
    """The integrations that are chosen now; what `select` takes to come back to this state."""
    with _lock:
        return tuple(name for name, slot in _slots.items() if slot.wanted)


def failures() -> dict[str, str]:
    """The chosen integrations that could not be loaded or installed, each with why."""
    with _lock:
        return {
            name: slot.broken or slot.failed
            for name, slot in _slots.items()
            if slot.wanted and (slot.broken or slot.failed)
        }


def uninstall_all() -> None:
    """Take all patches off, where they are still ours."""
    with _lock:
        slots = list(_slots.values())
    for slot in slots:
        slot.wanted = False
        _undo(slot)


def status() -> list[IntegrationStatus]:
    """Every integration that is found, by name. Loads them, but imports no library and installs nothing."""
    return [_status(slot) for slot in _discover().values()]


def _discover() -> dict[str, _Slot]:
    with faults.guard("discover_integrations"):
        with undivided_import():
            found = plugins.discover(plugins.INTEGRATIONS)
        with _lock:
            for plugin in found:
                slot = _slots.setdefault(plugin.name, _Slot(plugin))
                if slot.plugin != plugin:
                    slot.broken = (
                        f"{slot.plugin.distribution} and {plugin.distribution} both provide it: uninstall one"
                    )
    with _lock:
        return dict(_slots)


def _load(slot: _Slot) -> plugins.Integration | None:
    if slot.integration is None and not slot.broken:
        try:
            with undivided_import():
                integration = slot.plugin.load()()
            if not isinstance(integration, plugins.Integration):
                raise PluginError(f"{slot.plugin.value} is no integration: it lacks a name of the protocol")
            slot.integration = integration
        except Exception as error:
            faults.note(f"integration {slot.plugin.name}", error)
            slot.broken = str(error)
    return slot.integration


def _want(slot: _Slot) -> None:
    integration = _load(slot)
    if integration is None:
        return
    with _lock:
        first, slot.hooked = not slot.hooked, True
    if first:
        import wrapt

        # Runs at once if the target is imported already. Positional: the parameters' names differ by version.
        wrapt.register_post_import_hook(lambda module: _install(slot, integration), integration.target)
    elif integration.target in sys.modules:
        _install(slot, integration)


def _install(slot: _Slot, integration: plugins.Integration) -> None:
    with _lock:
        if not slot.wanted or slot.installer is not None:
            return
        slot.installer = threading.get_ident()
    try:
        from lightning_sdk.client.recorder import ProcessRecorder

        slot.undo = integration.install(ProcessRecorder())
        slot.failed = ""
    except Exception as error:
        faults.note(f"integration {slot.plugin.name}", error)
        slot.failed = f"{type(error).__name__}: {error}"
        _warn_unrouted(slot)
        return
    finally:
        if slot.undo is None:
            slot.installer = None
    if not slot.wanted:
        _undo(slot)


def _warn_unrouted(slot: _Slot) -> None:
    """Where routing was asked for, a failure is more than a gap in what is recorded."""
    from lightning_sdk.client import runtime

    configured = runtime.configured()
    if configured is not None and configured.routing is not None:
        faults.warn(
            f"calls of routed agents through {slot.plugin.name} do NOT go to the policy endpoint, for its "
            f"integration failed: {slot.failed}"
        )


def _undo(slot: _Slot) -> None:
    with _lock:
        undo, slot.undo = slot.undo, None
    if undo is not None:
        try:
            undo()
        except Exception as error:
            faults.note(f"integration {slot.plugin.name}", error)
        slot.installer = None


def _status(slot: _Slot) -> IntegrationStatus:
    integration = _load(slot)
    if integration is None:
        return IntegrationStatus(
            slot.plugin.name, "", slot.plugin.distribution, "", None, "broken", slot.broken
        )
    try:
        version: str | None = metadata.version(integration.distribution)
    except metadata.PackageNotFoundError:
        version = None
    return IntegrationStatus(
        slot.plugin.name,
        integration.target,
        integration.distribution,
        integration.versions,
        version,
        _state(slot, version),
        slot.failed,
    )


def _state(slot: _Slot, version: str | None) -> State:
    if slot.undo is not None:
        return "installed"
    if slot.failed:
        return "failed"
    if version is None:
        return "absent"
    return "waiting" if slot.wanted else "off"
