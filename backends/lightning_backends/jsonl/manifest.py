"""What a dataset consists of: counted while it is written."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import datetime, timezone
from typing import Any

from lightning_sdk.mdp import NATIVE_SCHEMA_VERSION, Episode
from lightning_sdk.version import DISTRIBUTION, version


class Manifest:
    """Counts, and the checksum of the data."""

    def __init__(self, file_name: str, format: str) -> None:
        self.groups = 0
        self.lines = 0
        self.outcomes: Counter[str] = Counter()
        # Transitions that carry one: they are in the data all the same.
        self.drop_reasons: Counter[str] = Counter()
        self._file_name = file_name
        self._format = format
        self._fidelities: Counter[str] = Counter()
        self._incomplete = 0
        self._rewarded = 0
        self._bytes = 0
        self._sha256 = hashlib.sha256()

    @property
    def rollouts(self) -> int:
        """How many were written."""
        return sum(self.outcomes.values())

    @property
    def transitions(self) -> int:
        """How many were written."""
        return sum(self._fidelities.values())

    def count_group(self) -> None:
        """One more group begins."""
        self.groups += 1

    def count_episode(self, episode: Episode) -> None:
        """Count an episode of the group that began last."""
        self.outcomes[episode.outcome] += 1
        self._incomplete += not episode.complete
        self._rewarded += episode.return_ is not None
        for transition in episode.transitions:
            self._fidelities[transition.fidelity] += 1
            if transition.drop_reason is not None:
                self.drop_reasons[transition.drop_reason] += 1

    def count_line(self, line: bytes) -> None:
        """Count a line of the data, its end included."""
        self.lines += 1
        self._bytes += len(line)
        self._sha256.update(line)

    def to_json(self) -> bytes:
        """The manifest file."""
        value: dict[str, Any] = {
            "schema_version": NATIVE_SCHEMA_VERSION,
            "format": self._format,
            "file": self._file_name,
            "sha256": self._sha256.hexdigest(),
            "bytes": self._bytes,
            "lines": self.lines,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "created_by": f"{DISTRIBUTION} {version()}",
            "groups": self.groups,
            "rollouts": self.rollouts,
            "rollouts_by_outcome": _sorted(self.outcomes),
            "rollouts_incomplete": self._incomplete,
            "rollouts_with_reward": self._rewarded,
            "rollouts_without_reward": self.rollouts - self._rewarded,
            "transitions": self.transitions,
            "transitions_by_fidelity": _sorted(self._fidelities),
            "transitions_by_drop_reason": _sorted(self.drop_reasons),
        }
        return json.dumps(value, indent=2).encode() + b"\n"


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))
