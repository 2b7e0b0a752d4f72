"""Word problems of five kinds, endless by seed: add, subtract, multiply, divide, and one of two steps."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

NAMES = ["Maria", "Sam", "Lena", "Ravi", "Omar", "Kim", "Eve", "Jack"]
THINGS = ["apples", "books", "coins", "stamps", "cards", "shells", "pencils", "beads"]


def problem(kind: int, rng: random.Random) -> dict[str, Any]:
    """One problem with its answer. `kind` counts from 0 to 4."""
    a, b = sorted((rng.randrange(11, 99), rng.randrange(11, 99)), reverse=True)
    c = rng.randrange(2, 9)
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    return [
        {
            "kind": "add",
            "question": f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have?",
            "answer": a + b,
        },
        {
            "kind": "subtract",
            "question": f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?",
            "answer": a - b,
        },
        {
            "kind": "multiply",
            "question": f"There are {c} boxes with {b} {thing} each. How many {thing} are there?",
            "answer": c * b,
        },
        {
            "kind": "divide",
            "question": f"{name} shares {c * b} {thing} equally among {c} friends. "
            f"How many {thing} does each friend get?",
            "answer": b,
        },
        {
            "kind": "two steps",
            "question": f"There are {c} boxes with {b} {thing} each. {name} takes {c * b // 3} {thing}. "
            f"How many {thing} are left?",
            "answer": c * b - c * b // 3,
        },
    ][kind]


def distinct_problems(count: int, seed: int, besides: set[str]) -> list[dict[str, Any]]:
    """`count` problems, as many of each kind, none of whose questions is in `besides`, to which they are added."""
    rng = random.Random(seed)  # noqa: S311  # word problems, not secrets
    found: list[dict[str, Any]] = []
    while len(found) < count:
        made = problem(len(found) % 5, rng)
        if made["question"] not in besides:
            besides.add(made["question"])
            found.append(made)
    return found


def write_tasks(folder: Path, *, train: int, held_out: int, seed: int) -> tuple[Path, Path]:
    """Write train.jsonl and held_out.jsonl; no question is in both. The held-out ones are the same for any seed."""
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    paths = []
    for name, problems in (
        ("held_out", distinct_problems(held_out, 10_000, seen)),
        ("train", distinct_problems(train, seed, seen)),
    ):
        path = folder / f"{name}.jsonl"
        path.write_text(
            "".join(json.dumps({"task_id": f"{name}-{i}", **p}) + "\n" for i, p in enumerate(problems))
        )
        paths.append(path)
    return paths[1], paths[0]
