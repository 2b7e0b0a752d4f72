"""Statistics over rollouts against statistics over rows, and three credits, on rollouts that vary in turns."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

# Two busy processes, trainer and endpoint, share the cores: more threads would wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

import torch

import lightning_sdk

HERE = Path(__file__).parent
# The tiny model, its tokenizer and its warm start are those of the other example.
PATHS = [str(HERE), str(HERE.parent / "tiny_rl")]

# Options of torch_rl. All else is the same.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "rollouts": {},  # broadcast, rloo over rollouts, aggregation by rollout: the defaults
    "rows": {"baseline": "statistic:mean_over_rows", "aggregation": "sequence"},
    "discounted": {"credit": "discounted", "credit_params": {"gamma": 0.9}},
    "gigpo": {"credit": "gigpo", "credit_params": {"gamma": 0.9}, "state_key": "statistic:state"},
}


def run(name: str, seed: int, rounds: int, out: Path) -> dict[str, Any]:
    """Train with one configuration and one seed; what came of it."""
    from chain_tasks import all_tasks, demonstration
    from model import make_model

    began_s = time.monotonic()
    model = out / f"model-{seed}"
    if not (model / "config.json").exists():
        make_model(model, seed, demonstration)
    tasks, held_out = all_tasks(seed)
    result = lightning_sdk.train(
        "chain_agent:solve",
        tasks=tasks,
        validation=held_out,
        model=model,
        config=HERE / "train.toml",
        settings={"run": {"seed": seed}, "learning": {"rounds": rounds}, "backend": CONFIGURATIONS[name]},
        run_id=time.strftime(f"ablation-%Y%m%d-%H%M%S-{name}-{seed}"),
    )
    rows = [json.loads(line) for line in (result.directory / "metrics.jsonl").read_text().splitlines()]
    turns = [row["calls/calls"] / row["reward/rollouts"] for row in rows if row["kind"] == "round"]
    return {
        "configuration": name,
        "seed": seed,
        "curve": [(row["rounds_done"], row["reward/mean"]) for row in rows if row["kind"] == "validation"],
        "turns": [turns[0], turns[-1]],
        "minutes": (time.monotonic() - began_s) / 60,
        "ended": result.reason,
        "date": time.strftime("%Y-%m-%d"),
    }


def area(curve: list[tuple[int, float]]) -> float:
    """The mean reward over the rounds of a run: the area under its curve, by trapezoids, by its width."""
    pieces = pairwise(curve)
    whole = sum((right[0] - left[0]) * (left[1] + right[1]) / 2 for left, right in pieces)
    return whole / (curve[-1][0] - curve[0][0])


def tell(results: list[dict[str, Any]]) -> Iterable[str]:
    """The results as a table: a line a run, and a line with the means of each configuration."""
    yield "| configuration | seed | start | end | area | calls a rollout, first and last round | minutes |"
    yield "|---|---|---|---|---|---|---|"
    for name in CONFIGURATIONS:
        numbers = []
        for each in sorted(
            (one for one in results if one["configuration"] == name), key=lambda one: one["seed"]
        ):
            curve = each["curve"]
            numbers.append([curve[0][1], curve[-1][1], area(curve), *each["turns"], each["minutes"]])
            yield _line(name, str(each["seed"]), numbers[-1])
        if numbers:
            means = [sum(column) / len(numbers) for column in zip(*numbers, strict=True)]
            yield _line(f"**{name}**", "mean", means)


def _line(name: str, seed: str, numbers: list[float]) -> str:
    start, end, under, first, last, minutes = numbers
    return f"| {name} | {seed} | {start:.3f} | {end:.3f} | {under:.3f} | {first:.2f}, {last:.2f} | {minutes:.1f} |"


def main() -> int:
    """Run what has no result yet, and print all that there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configurations", nargs="+", default=list(CONFIGURATIONS), choices=CONFIGURATIONS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("out/ablation"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path[:0] = PATHS
    # The agent's processes import it from there too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*PATHS, os.environ.get("PYTHONPATH")]))
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    kept = out / f"results-{arguments.rounds}.jsonl"
    results = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(each["configuration"], each["seed"]) for each in results}
    # By seed first: what is there when it is stopped compares all configurations.
    for seed in arguments.seeds:
        for name in arguments.configurations:
            if (name, seed) not in done:
                results.append(run(name, seed, arguments.rounds, out))
                with kept.open("a") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    print("\n".join(tell(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
