"""The address of a running collector, and the file in which it tells that."""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from lightning_sdk.addresses import SCHEME, join_host_port


def local_endpoint(host: str, port: int) -> str:
    """The endpoint by which this machine reaches a server on `host`, which may stand for all interfaces."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"{SCHEME}://{join_host_port(host, port)}"
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"{SCHEME}://{join_host_port(host, port)}"


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
