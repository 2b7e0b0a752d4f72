"""A real language model learns to use a calculator: SmolLM2-135M-Instruct, from about 0.2 on. See README.md."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tasks import write_tasks

HERE = Path(__file__).resolve().parent
HELD_OUT = 100


def converted_model() -> Path:
    """The model of the quickstart, which knows where it comes from."""
    command = [sys.executable, str(HERE.parent / "quickstart" / "model.py")]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def main() -> None:
    """Parse the command line and train once for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="a run each (default: 0 1)")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of a run (default: 30)")
    parser.add_argument("--tasks", type=int, default=1024, help="training tasks (default: 1024)")
    arguments = parser.parse_args()

    model = converted_model()
    home = Path(".lightning").resolve()
    for seed in arguments.seeds:
        folder = home / "calculator" / f"seed-{seed}"
        train, held_out = write_tasks(folder, train=arguments.tasks, held_out=HELD_OUT, seed=seed)
        command = [sys.executable, "-m", "lightning_sdk", "train", "agent:solve", "--home", str(home)]
        command += ["--tasks", str(train), "--validation", str(held_out)]
        command += ["--model", str(model), "--config", str(HERE / "train.toml")]
        command += ["--run-id", time.strftime(f"calculator-{seed}-%Y%m%d-%H%M%S")]
        command += ["-o", f"run.seed={seed}", "-o", f"learning.rounds={arguments.rounds}"]
        # The agent is imported from the working directory.
        subprocess.run(command, check=True, cwd=HERE)


if __name__ == "__main__":
    main()
