"""What lies in the spool, for `lsdk stats` and `lsdk doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lightning_sdk.addresses import grpc_target, is_loopback
from lightning_sdk.cli import wording
from lightning_sdk.client.segments import DAMAGED_SUFFIX, SegmentReader, list_segments
from lightning_sdk.collector.server import DEFAULT_PORT
from lightning_sdk.errors import ConfigError, SpoolError
from lightning_sdk.home import Home


@dataclass(frozen=True)
class SpoolState:
    """Segments that were not deleted yet, by where they are owed ("" is whoever reads this spool)."""

    segments: Mapping[str, int]
    records: Mapping[str, int]
    # File name to what is wrong with it.
    damaged: Mapping[str, str]


def inspect_spool(spool: Path) -> SpoolState:
    """Count what the spool holds. Changes nothing.

    Raises:
        SpoolError: the directory cannot be read.
    """
    segments: Counter[str] = Counter()
    records: Counter[str] = Counter()
    damaged: dict[str, str] = {}
    for path in list_segments(spool):
        try:
            reader = SegmentReader(path)
        except SpoolError as error:
            if path.exists():  # else adopted and deleted meanwhile
                damaged[path.name] = str(error)
            continue
        try:
            destination = reader.header.destination
            segments[destination] += 1
            while frames := reader.read():
                records[destination] += len(frames)
                lost = [frame for frame in frames if frame.lost_reason]
                if lost:
                    damaged[path.name] = f"record {lost[0].seq}: {lost[0].lost_reason}"
            if reader.damage is not None:
                damaged[path.name] = reader.damage
        finally:
            reader.close()
    for path in spool.glob(f"*{DAMAGED_SUFFIX}"):
        damaged[path.name] = "set aside when it was adopted: what follows the damage cannot be read"
    return SpoolState(segments, records, damaged)


def waiting(spool: SpoolState, home: Home) -> list[str]:
    """A sentence for each collector that records of this spool are kept for, with what delivers them."""
    return [
        f"{wording.count(records, 'record')} in {home.spool} {'waits' if records == 1 else 'wait'} for "
        f"{wording.one_line(destination)}: {_delivery(destination, home)}"
        for destination, records in sorted(spool.records.items())
        if destination and records
    ]


def _delivery(destination: str, home: Home) -> str:
    try:
        grpc_target(destination)
    except ConfigError:
        return "that is no endpoint"
    address = urlsplit(destination)
    if not is_loopback(address.hostname or ""):
        return (
            "once a collector runs there, the next program with this endpoint and state directory sends them"
        )
    command = ["lsdk collect"]
    if address.port != DEFAULT_PORT:
        command.append(f"--port {address.port}")
    if home != Home.locate():
        command.append(f"--home {home.path}")
    return f"`{' '.join(command)}` takes them in"
