"""What clients counted: their own errors, what they dropped, what they could not send."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from typing import Final

from lightning_sdk.records import Counters

_PREFIX: Final = "client."
# Names become keys of the statistics: neither they nor their number may grow without end.
_NAME: Final = re.compile(r"[ -~]{1,128}")
_MAX_NAMES: Final = 64
# What the statistics can tell on the wire.
_MAX_SUM: Final = (1 << 64) - 1


def keep_client_counters(
    connection: sqlite3.Connection, producer_no: int, seq: int, counters: Counters
) -> None:
    """Keep what a producer counted, unless what is here was counted later. Odd names are left out."""
    fit = {name: value for name, value in counters.values.items() if _NAME.fullmatch(name)}
    counted = dict(sorted(fit.items())[:_MAX_NAMES])
    connection.execute(
        "INSERT INTO client_counters (producer, seq, counted) VALUES (:producer, :seq, :counted) "
        "ON CONFLICT (producer) DO UPDATE SET seq = :seq, counted = :counted WHERE seq < :seq",
        {"producer": producer_no, "seq": seq, "counted": json.dumps(counted)},
    )


def sum_client_counters(connection: sqlite3.Connection) -> dict[str, int]:
    """What all producers have counted, by "client.<name>"."""
    sums: Counter[str] = Counter()
    for (counted,) in connection.execute("SELECT counted FROM client_counters WHERE counted <> '{}'"):
        sums.update(json.loads(counted))
    return {_PREFIX + name: min(value, _MAX_SUM) for name, value in sums.items()}
