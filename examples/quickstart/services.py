"""The two processes that the quickstart needs beside itself: a collector and a policy endpoint."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 120


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def lsdk(command: str, *arguments: str, port: int, log: Path) -> Iterator[None]:
    """Run `lsdk command` until the block ends; enter the block when it listens on `port`.

    Raises:
        SystemExit: it stopped or did not listen in time; the message is the end of its log.
    """
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lightning_sdk", command, *arguments, "--port", str(port)],
            stdout=output,
            stderr=output,
        )
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"lsdk {command} did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
