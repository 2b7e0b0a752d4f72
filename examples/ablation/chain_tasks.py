"""Tasks of one to three searches: a key leads to a value, or to another key that must be searched for in its turn."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from tasks import KEYS, VALUES  # of examples/tiny_rl

TRAIN, HELD_OUT = 240, 48
# How often a turn of a demonstration is what it should be.
RIGHT = 0.6


def all_tasks(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Tasks to train on, and others that are held out; a third each take one, two and three searches."""
    draw = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < TRAIN + HELD_OUT:
        chain = draw_chain(draw, 1 + len(rows) % 3)
        name = "-".join(chain)
        rows[name] = {"id": name, "chain": chain}
    shuffled = list(rows.values())
    draw.shuffle(shuffled)
    return shuffled[HELD_OUT:], shuffled[:HELD_OUT]


def draw_chain(draw: random.Random, searches: int) -> list[str]:
    """So many different keys, each of which leads to the next, and the value at their end."""
    return [*draw.sample(KEYS, searches), draw.choice(VALUES)]


def demonstration(draw: random.Random) -> list[tuple[str, str]]:
    """The turns of a rollout, each with its prompt and each wrong as often as `RIGHT` leaves.

    What is learned from stands in the prompt: a wrong search and its "error" come before some of them, and the
    prompt then goes on as if the right search had been made.
    """
    chain = draw_chain(draw, draw.choice((1, 2, 3)))
    prompt = f"<user> what is {chain[0]} ? <assistant>"
    turns = []
    for key, found in pairwise(chain):
        if draw.random() < 0.2:
            prompt += f" search {draw.choice(KEYS)} <eos> <user> error <assistant>"
        turns.append((prompt, f"{_draw_search(draw, key)} <eos>"))
        prompt += f" search {key} <eos> <user> {key} = {found} <assistant>"
    answer = chain[-1] if draw.random() < RIGHT else draw.choice(VALUES)
    return [*turns, (prompt, f"answer {answer} <eos>")]


def _draw_search(draw: random.Random, key: str) -> str:
    if draw.random() < RIGHT:
        return f"search {key}"
    return draw.choice((f"search {draw.choice(KEYS)}", f"answer {draw.choice(VALUES)}"))
