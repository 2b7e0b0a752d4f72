"""The processes that a run needs beside itself: started, watched, and started again where they died."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from lightning_sdk.errors import LightningError, RunError

_log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.2
_HEALTH_TIMEOUT_S: Final = 5.0
# Longer than a child takes itself, see `child`.
_STOP_TIMEOUT_S: Final = 25.0
_LOG_TAIL: Final = 1500


class Service:
    """An `lsdk` command that listens on a loopback port, and is started again where it died.

    Thread-safe. It ends with `close`, and with this process, however that ends.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        port: int,
        is_ready: Callable[[], bool],
        log: Path,
        environment: Mapping[str, str],
        restarts: int,
        start_timeout_s: float,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        """Say what to run; `start` runs it.

        Args:
            name: of the command, for messages.
            arguments: of `lsdk`.
            port: on which it listens.
            is_ready: whether it answers.
            log: takes its output.
            environment: of it; it gets no variable of this process else.
            restarts: how often it may be started again.
            start_timeout_s: how long it may take to answer.
            on_restart: called, in the watching thread, when it answers again after it died.
        """
        self.name = name
        self.port = port
        self.restarted = 0
        self._arguments = list(arguments)
        self._is_ready = is_ready
        self._log_path = log
        self._environment = dict(environment)
        self._restarts = restarts
        self._start_timeout_s = start_timeout_s
        self._on_restart = on_restart
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._closing = threading.Event()
        self._up = threading.Event()
        self._failure: LightningError | None = None
        self._watcher = threading.Thread(target=self._watch, name=f"watch {name}", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Run it, and return when it answers.

        Raises:
            RunError: it does not; the message has the end of its log.
        """
        try:
            self._spawn()
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        self._watcher.start()

    def check(self) -> None:
        """Raises RunError where it died and could not be started again."""
        if self._failure is not None:
            raise self._failure

    def wait_up(self) -> None:
        """Wait while it is being started again.

        Raises:
            RunError: it could not be.
        """
        # One that died a moment ago counts as up until the watcher has seen it: so its port is asked too.
        while not (self._up.wait(_LOOK_EVERY_S) and listens(self.port)):
            self.check()
            if self._closing.wait(_LOOK_EVERY_S):
                return

    def close(self) -> None:
        """End it. Idempotent."""
        self._closing.set()
        if self._watcher.is_alive() and self._watcher is not threading.current_thread():
            self._watcher.join()
        self._end()

    def _spawn(self) -> None:
        read, self._pipe = os.pipe()
        try:
            with self._log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "lightning_sdk.training.child", str(read), *self._arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    pass_fds=[read],
                    # A signal to our process group, as Ctrl-C in a terminal sends it, is for us alone.
                    start_new_session=True,
                )
        finally:
            os.close(read)

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout_s
        while not self._is_ready():
            if self._process.poll() is not None:
                raise RunError(f"lsdk {self.name} ended while it started: {self._last_words()}")
            if time.monotonic() > deadline:
                raise RunError(
                    f"lsdk {self.name} did not answer in {self._start_timeout_s:g} s (services.start_timeout_s): "
                    f"{self._last_words()}"
                )
            if self._closing.wait(_LOOK_EVERY_S / 4):
                return
        self._up.set()

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            assert self._process is not None
            code = self._process.poll()
            if code is None:
                continue
            self._up.clear()
            if self.restarted >= self._restarts:
                self._failure = RunError(
                    f"lsdk {self.name} died again (exit code {code}) after {self.restarted} restarts "
                    f"(services.restarts): {self._last_words()}"
                )
                return
            self.restarted += 1
            _log.warning("lsdk %s died (exit code %s) and is started again", self.name, code)
            try:
                self._close_pipe()
                self._spawn()
                self._wait_ready()
                if not self._closing.is_set():
                    self._on_restart()
            except LightningError as error:
                self._failure = error
                return
            except OSError as error:
                self._failure = RunError(f"lsdk {self.name} died and cannot be started again: {error}")
                return

    def _end(self) -> None:
        self._close_pipe()
        process = self._process
        if process is None:
            return
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            text = self._log_path.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()
            if text:
                return f"{text.splitlines()[-1]} (all of it in {self._log_path})"
        return f"its log {self._log_path} is empty"


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Whether somebody does, on a port of the loopback interface."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_healthy(port: int) -> bool:
    """Whether a policy endpoint answers there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=_HEALTH_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the settings of the client in it: a service is told everything by its command line."""
    kept = ("LIGHTNING_STRICT",)
    return {
        name: value
        for name, value in environment.items()
        if name in kept or not name.startswith("LIGHTNING_")
    }
