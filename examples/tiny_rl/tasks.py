"""Tasks: which value does a key have? A row is a question and what the search tool finds."""

from __future__ import annotations

import random

KEYS = tuple(f"k{number}" for number in range(12))
VALUES = tuple(f"v{number}" for number in range(12))


def all_tasks(seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Every pair of key and value once: those to train on, and 32 that are held out."""
    pairs = [(key, value) for key in KEYS for value in VALUES]
    random.Random(seed).shuffle(pairs)
    rows = [{"id": f"{key}-{value}", "key": key, "value": value} for key, value in pairs]
    return rows[32:], rows[:32]
