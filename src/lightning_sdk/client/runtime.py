"""What this process records with: one configuration and one producer, made by `init` or by the first traced
execution.

- An explicit `init` replaces a configuration that nobody asked for; open scopes go on and their later records
  go to the new producer, which joins their rollouts when it first writes there.
- A second explicit `init` with other values warns and changes nothing; with equal values it is no event at
  all.
- A `testing.capture()` stands before all of this: while one is open, it receives every record.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

from lightning_sdk.client import faults
from lightning_sdk.client.config import Config, load_config, load_environment
from lightning_sdk.client.loading import load_client
from lightning_sdk.client.routing import Routing
from lightning_sdk.client.urls import UrlPrefix
from lightning_sdk.errors import ConfigError
from lightning_sdk.home import StrPath
from lightning_sdk.ids import new_id

if TYPE_CHECKING:
    from lightning_sdk.client.journal import Membership
    from lightning_sdk.client.producer import Producer
    from lightning_sdk.client.scope import Rollout
    from lightning_sdk.records import Record

_EXIT_TIMEOUT_S = 5.0
_READY_TIMEOUT_S = 10.0


class Sink(Protocol):
    """Where records go: a `Producer`, or the memory of a `testing.capture()`."""

    @property
    def id(self) -> bytes:
        """The producer that it writes as."""

    def tick(self) -> int:
        """The next value of its causal clock."""

    def write(self, record: Record) -> None:
        """Take a record for good.

        Raises:
            SpoolError: it cannot be written.
        """


class Runtime:
    """One configuration with its producer, which is made when the first record comes."""

    def __init__(self, config: Config, *, explicit: bool, memory: Sink | None = None) -> None:
        # Here, and not at the exit of the process, where `close` would have to.
        load_client()
        self.config = config
        self.explicit = explicit
        self.run_id = config.run_id or new_id("run")
        self.policy_prefix = UrlPrefix(config.policy_endpoint) if config.policy_endpoint else None
        self.routing = (
            Routing(endpoint=config.policy_endpoint, token=config.policy_token, agents=config.agents)
            if config.agents
            else None
        )
        self.closed = False
        # Rollouts in which scopes are open here. Changes only under the journal's lock.
        self.joined: dict[Rollout, Membership] = {}
        # The counters that are in a record; and what is counted for this producer. Under the journal's lock.
        self.written_counters: dict[str, int] = {}
        self._counted: dict[str, int] = {}
        # Set when the integrations are in place; the thread that puts them there does not wait for itself.
        # No thread: it was lost in a fork.
        self.ready = threading.Event()
        self._installer: int | None = threading.get_ident()
        self._memory = memory
        self._producer: Producer | None = None
        self._warned: set[str] = set()

    @property
    def captured(self) -> bool:
        """Whether it is that of a `testing.capture()`."""
        return self._memory is not None

    @property
    def made_sink(self) -> Sink | None:
        """Where its records go, if that is made already."""
        return self._memory if self._memory is not None else self._producer

    def sink(self) -> Sink:
        """Where its records go. Only under the journal's lock.

        Raises:
            OSError: the state directory cannot be made.
        """
        if self._memory is not None:
            return self._memory
        if self._producer is None:
            from lightning_sdk.client.producer import Producer

            config = self.config
            config.home.ensure()
            self._producer = Producer(config.home.spool, destination=config.endpoint, token=config.token)
        return self._producer

    def install(self) -> None:
        """Put its integrations in place, then let other threads record."""
        from lightning_sdk.client import integrations
        from lightning_sdk.client.propagation import patches

        waiting = self.ready
        try:
            if not self.captured and not is_capturing():
                patches.install(self.config.propagate)
                integrations.select(self.config.integrations)
        except BaseException as error:
            if not isinstance(error, Exception) or faults.is_of_agent(error):
                # An interrupt of the agent's came in between: whoever comes next goes on.
                self.ready = threading.Event()
                self._installer = None
            raise
        finally:
            waiting.set()

    def wait_ready(self) -> None:
        """Wait until the integrations are in place, so that no call slips by unseen. Bounded, and counted."""
        if self.ready.is_set() or threading.get_ident() == self._installer:
            return
        with _lock:
            orphaned = self._installer is None
            if orphaned:
                self._installer = threading.get_ident()
        if orphaned:
            with faults.guard("integrations"):
                self.install()
        elif not self.ready.wait(_READY_TIMEOUT_S):
            faults.count("integrations_late")
            self.ready.set()

    def take_counters(self) -> dict[str, int]:
        """All that was counted for its producer, by name, without zeros. Nobody else gets it too."""
        faults.take(self._counted)
        sent = self._producer.counters if self._producer is not None else {}
        return {**self._counted, **{name: value for name, value in sent.items() if value}}

    def after_fork_in_child(self) -> None:
        """What the parent counted is the parent's; a thread that was installing has stayed there."""
        self.written_counters = {}
        self._counted = {}
        if not self.ready.is_set():
            self.ready = threading.Event()
            if self._installer != threading.get_ident():
                self._installer = None

    def flush(self, timeout_s: float | None) -> bool:
        """`Producer.flush`; True where nothing was written yet."""
        return self._producer is None or self._producer.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """`Producer.close`; True where nothing was written yet."""
        from lightning_sdk.client import journal

        with faults.guard("close"):
            journal.close(self)
        return self._producer is None or self._producer.close(timeout_s)

    def reopen(self) -> None:
        """After `close`: what is recorded all the same goes to another producer."""
        self._producer = None
        self.written_counters = {}
        self._counted = {}
        self.closed = False

    def warn_once(self, message: str) -> None:
        """Warn the user, at the line that called our public function, once for each message."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, RuntimeWarning, stacklevel=3)


_lock = threading.RLock()
_active: Runtime | None = None
# Open captures, the innermost last. Replaced, never changed.
_captures: tuple[Runtime, ...] = ()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    for runtime in (_active, *_captures):
        if runtime is not None:
            runtime.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def init(
    endpoint: str | None = None,
    *,
    project: str | None = None,
    home: StrPath | None = None,
    spool_dir: StrPath | None = None,
    integrations: Iterable[str] | None = None,
    token: str | None = None,
    redact: Callable[[bytes], bytes] | None = None,
    policy_endpoint: str | None = None,
    policy_token: str | None = None,
    agents: str | Mapping[str, str | None] | None = None,
    run_id: str | None = None,
    split: str | None = None,
    propagate: bool | None = None,
) -> None:
    """Choose how this process records. Optional: the first traced execution does it with the defaults.

    Each argument that is left out comes from its variable `LIGHTNING_…` (`LIGHTNING_ENDPOINT` and so on),
    else has the default below. Paths become absolute now. After an implicit start this replaces the
    configuration; after another explicit `init` it warns and does nothing, unless all values are equal.

    Args:
        endpoint: `grpc://host:port` of a collector. Default: none, records stay in the spool until `lsdk`
            reads them.
        project: a name to keep apart what belongs apart. Default: "default".
        home: the state directory. Default: `.lightning` of the working directory.
        spool_dir: where records are written first. Default: `spool` in `home`.
        integrations: names of the integrations to install. Default: all that are found.
        token: what the collector asks for.
        redact: called with each body before it is written, after the built-in patterns.
        policy_endpoint: base URL of the policy endpoint that serves the trained model, such as
            `http://127.0.0.1:8000/v1`. Only requests to it carry a call id.
        policy_token: what the policy endpoint asks for. Only calls of `agents` carry it.
        agents: whose model calls go to the policy endpoint, wherever their code sends them: patterns of agents'
            names (`"writer|rewriter"`, `"*"`), or a mapping from such to the names of policies there; the
            first that matches counts. The others keep their model. Default: none.
        run_id: the run that rollouts belong to. Default: a fresh one.
        split: the part of a data set that rollouts belong to, such as "train".
        propagate: whether threads, pools, processes and programs that a rollout starts belong to it. Default: True.

    Raises:
        ConfigError: a value cannot be used.
    """
    # The parameters, and nothing else: this is the first line.
    config = load_config(**locals())
    with _lock:
        before = _active
        if before is not None and before.config == config:
            before.explicit = True
            return
        if before is not None and before.explicit:
            _warn_ignored(before.config, config)
            return
        runtime = Runtime(config, explicit=True)
        _activate(runtime)
    runtime.install()
    if before is not None:
        _retire(before, _EXIT_TIMEOUT_S)
    if config.agents:
        _check_routable(config)


def _check_routable(config: Config) -> None:
    from lightning_sdk.client import integrations

    if failed := integrations.failures():
        told = "; ".join(f"{name}: {why}" for name, why in sorted(failed.items()))
        shutdown()
        raise ConfigError(
            f"agents={'|'.join(pattern for pattern, _ in config.agents)!r} cannot be routed through an integration "
            f"that failed ({told}): mend it, or name the others in integrations"
        )


def _warn_ignored(used: Config, ignored: Config) -> None:
    names = [f.name for f in fields(Config) if getattr(used, f.name) != getattr(ignored, f.name)]
    warnings.warn(
        f"init() was called before with other values of {', '.join(names)}: the first call counts, this one "
        "is ignored; call shutdown() in between to change them",
        RuntimeWarning,
        stacklevel=3,
    )


def active() -> Runtime:
    """What records now: the innermost capture, else the initialised runtime, which is made if nobody did."""
    captures = _captures
    if captures:
        return captures[-1]
    runtime = _active
    if runtime is None:
        return _start_implicitly()
    runtime.wait_ready()
    return runtime


def active_for(rollout: Rollout) -> Runtime:
    """What takes the records of `rollout` now: the innermost capture, else what records.

    A rollout that began in a capture which is closed is still written there: it concerns nobody else.
    """
    captures, origin = _captures, rollout.origin
    if origin is None:
        return captures[-1] if captures else active()
    if origin.captured and origin not in captures:
        return origin
    return captures[-1] if captures else _active or origin


def routing_for(rollout: Rollout) -> Routing | None:
    """Whose calls are routed now, of those in `rollout`.

    In a capture that is what an explicit `init` asked for, never what the environment says: a test of an agent
    talks to the model that the test names.
    """
    receiver = active_for(rollout)
    if not receiver.captured:
        return receiver.routing
    configured = _active
    return configured.routing if configured is not None and configured.explicit else None


def innermost_capture() -> Runtime | None:
    """What a `testing.capture()` that is open records with."""
    captures = _captures
    return captures[-1] if captures else None


def is_capturing() -> bool:
    """Whether a `testing.capture()` is open."""
    return bool(_captures)


def configured() -> Runtime | None:
    """What records where no capture is open."""
    return _active


def push_capture(runtime: Runtime) -> None:
    """Open a capture: it receives all records, and what is counted, until `pop_capture`."""
    global _captures
    with _lock:
        before = _captures[-1] if _captures else _active
        if before is not None:
            before.take_counters()
        _captures = (*_captures, runtime)


def pop_capture(runtime: Runtime) -> None:
    """Close a capture."""
    global _captures
    with _lock:
        runtime.take_counters()
        _captures = tuple(capture for capture in _captures if capture is not runtime)


def flush(timeout: float | None = None) -> bool:
    """Wait until everything recorded so far has reached the collector (without one: the disk).

    Args:
        timeout: seconds to wait at most; None waits without limit.

    Returns:
        False when the time was up first. What was not sent stays in the spool.
    """
    runtime = _active
    if runtime is None or is_capturing():
        return True
    with faults.guard("flush"):
        return runtime.flush(timeout)
    return False


def shutdown(timeout: float = _EXIT_TIMEOUT_S) -> bool:
    """Flush, close the spool, take all patches off and forget the configuration.

    What runs traced afterwards starts anew, with the settings of the environment. Scopes that are open now
    write nothing more, which is counted. At the exit of the process the flush and the close happen by
    themselves.

    Args:
        timeout: seconds that it may take at most to send what waits.

    Returns:
        False when not everything reached the collector in that time. It stays in the spool.
    """
    global _active
    from lightning_sdk.client import integrations
    from lightning_sdk.client.propagation import patches

    with _lock:
        runtime, _active = _active, None
    with faults.guard("shutdown"):
        if not is_capturing():
            integrations.uninstall_all()
            patches.uninstall()
        return runtime is None or runtime.close(timeout)
    return False


def _start_implicitly() -> Runtime:
    with _lock:
        if _active is not None:
            return _active
        config, ignored = load_environment()
        runtime = Runtime(config, explicit=False)
        _activate(runtime)
    for sentence in ignored:
        faults.count("settings_ignored")
        faults.warn(f"{sentence}; correct the variable, or call init() with what you want")
    # Not under the lock: installing imports modules, and their import may run traced code in another thread.
    with faults.guard("integrations"):
        runtime.install()
    return runtime


def _activate(runtime: Runtime) -> None:
    """Make it the one of this process. Under the lock."""
    global _active
    _active = runtime


def _retire(runtime: Runtime, timeout_s: float) -> None:
    """Close a runtime that another has replaced; its producer leaves the rollouts that go on in the other."""
    from lightning_sdk.client import journal

    with faults.guard("replace"):
        journal.close(runtime, replaced=True)
        runtime.close(timeout_s)


# Registered by the import: hooks of the agent that were registered after that run before it, and may record.
@atexit.register
def _close_at_exit() -> None:
    runtime = _active
    if runtime is not None:
        with faults.guard("exit"):
            runtime.close(_EXIT_TIMEOUT_S)
        # Hooks that were registered before our import run after this one.
        runtime.reopen()
