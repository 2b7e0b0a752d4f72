"""Addresses of collectors, and the file in which a running one tells its own."""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from lightning_sdk.errors import ConfigError

_SCHEME: Final = "grpc"


def grpc_target(endpoint: str) -> str:
    """The "host:port" of an endpoint "grpc://host:port".

    Raises:
        ConfigError: it is none.
    """
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != _SCHEME or parts.path.strip("/"):
        raise ConfigError(
            f"the endpoint {endpoint!r} is not of the form grpc://host:port, such as grpc://127.0.0.1:4319"
        )
    return join(host, port)


def join(host: str, port: int) -> str:
    """Host and port in one, with the brackets that IPv6 needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def local_endpoint(host: str, port: int) -> str:
    """The endpoint by which this machine reaches a server on `host`, which may stand for all interfaces."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"{_SCHEME}://{join(host, port)}"
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"{_SCHEME}://{join(host, port)}"


@dataclass(frozen=True, slots=True)
class Announcement:
    """Where the collector that owns a home's store listens, and which process it is."""

    address: str
    pid: int

    def write(self, path: Path) -> None:
        """Announce it, readable by the owner only; whoever reads sees all of it or nothing."""
        unfinished = path.with_name(f"{path.name}.{self.pid}")
        unfinished.unlink(missing_ok=True)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)
        unfinished.replace(path)

    def withdraw(self, path: Path) -> None:
        """Take it back, unless another collector has announced itself since."""
        if read_announcement(path) == self:
            path.unlink(missing_ok=True)


def read_announcement(path: Path) -> Announcement | None:
    """What was last announced at `path`, perhaps by a process that is dead; None if nothing readable was."""
    try:
        found = json.loads(path.read_text())
        return Announcement(address=str(found["address"]), pid=int(found["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
