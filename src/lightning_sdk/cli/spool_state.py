"""What lies in the spool, for `lsdk stats` and `lsdk doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightning_sdk.client.segments import DAMAGED_SUFFIX, SegmentReader, list_segments
from lightning_sdk.errors import SpoolError


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
