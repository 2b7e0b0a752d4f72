"""The examples in `--help` work as they stand, and what they pick out of the JSON is there."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_sdk.cli.main import COMMANDS, lsdk, main
from lightning_sdk.home import Home
from support.cli_rollouts import write_rollout

# They run until they are interrupted, or need an agent; tests of their own start them.
ENDLESS = ("lsdk run ", "lsdk work ", "lsdk collect", "lsdk serve", "lsdk train ")


def examples() -> list[str]:
    """Every line of every example, without those that start a server or the user's own program."""
    commands = [lsdk, *(importlib.import_module(f"lightning_sdk.cli.{name}").command for name in COMMANDS)]
    lines = [line.strip() for command in commands for line in command.epilog.splitlines()[2:]]
    return sorted({line for line in lines if line.startswith("lsdk") and not line.startswith(ENDLESS)})


@pytest.mark.parametrize("line", examples())
def test_an_example_works(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rollout(Home.locate().spool, 0x3F2A, project="search-agent")
    typed, _, picking = line.partition(" | ")
    assert main(shlex.split(typed)[1:]) == 0
    out = capsys.readouterr().out
    if not picking:
        return
    path = re.fullmatch(r"jq (\.[a-z_.]+)", picking)
    if path is not None:
        value = json.loads(out)
        for key in path[1].strip(".").split("."):
            value = value[key]
    if shutil.which("jq") is not None:
        picked = subprocess.run(shlex.split(picking), input=out, capture_output=True, text=True, check=True)
        assert "null" not in picked.stdout
