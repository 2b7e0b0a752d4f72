"""A tiny policy learns to use a tool, through the whole loop. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

# Two busy processes, trainer and endpoint, share the cores: more threads would wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

import torch

import lightning_sdk
from model import make_model
from tasks import all_tasks

HERE = Path(__file__).parent


def train(seed: int, out: Path) -> tuple[float, float]:
    """One run; the mean reward on held-out tasks before and after it."""
    began_s = time.monotonic()
    model = out / f"model-{seed}"
    loss = make_model(model, seed)
    print(f"seed {seed}: model made and warm-started in {time.monotonic() - began_s:.0f} s, loss {loss:.2f}")
    tasks, held_out = all_tasks(seed)
    result = lightning_sdk.train(
        "agent:solve",
        tasks=tasks,
        validation=held_out,
        model=model,
        config=HERE / "train.toml",
        settings={"run": {"seed": seed}},
        run_id=time.strftime(f"tiny-rl-%Y%m%d-%H%M%S-{seed}"),
    )
    rows = [json.loads(line) for line in (result.directory / "metrics.jsonl").read_text().splitlines()]
    held_out_rewards = [
        (row["rounds_done"], row["reward/mean"]) for row in rows if row["kind"] == "validation"
    ]
    print(
        f"\nseed {seed}: {result.reason} after {result.rounds_done} rounds, {time.monotonic() - began_s:.0f} s"
    )
    print("mean reward on held-out tasks, at temperature 1:")
    for rounds_done, reward in held_out_rewards:
        print(f"  after {rounds_done:3} rounds  {reward:.3f}  {'#' * round(50 * reward)}")
    for curve in result.curves:
        print(f"curve: {curve}")
    return held_out_rewards[0][1], max(reward for _, reward in held_out_rewards)


def main() -> int:
    """Train with each seed; 1 where one did not learn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("out/tiny_rl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE))
    # The agent's processes import it from here too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    failed = []
    for seed in arguments.seeds:
        before, after = train(seed, arguments.out.absolute())
        if not (before < 0.35 and after > 0.9):
            failed.append(f"seed {seed}: {before:.3f} to {after:.3f}")
    if failed:
        print(f"expected from under 0.35 to over 0.9, got {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
