"""`lsdk train` before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lightning_sdk.cli.train import command
from lightning_sdk.errors import ConfigError
from lightning_sdk.home import Home
from lightning_sdk.training.settings import Settings
from lightning_sdk.training.state import RunDirectory


def test_functions_that_settings_name_are_found_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules_from_here.py").write_text("def find(episode):\n    return []\n")
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n')
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    # As for the program `lsdk`, whose own directory comes first.
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    with RunDirectory.create(Home.locate(tmp_path / "home"), "run-1", Settings()):
        pass
    arguments = [
        "agents:solve",
        "--tasks",
        "tasks.jsonl",
        "--model",
        "model",
        "--home",
        "home",
        "--run-id",
        "run-1",
    ]
    rule = 'air.mine={rule = "function", function = "rules_from_here:find", weight = 1}'
    with pytest.raises(ConfigError, match="run run-1 exists"):
        command.main([*arguments, "-o", rule], standalone_mode=False)
    with pytest.raises(ConfigError, match="cannot be imported"):
        command.main([*arguments, "-o", rule.replace("from_here", "from_nowhere")], standalone_mode=False)
