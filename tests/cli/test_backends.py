"""`lsdk backends` and how `lsdk export` takes a backend of somebody else.

1. Each backend stands there with what it takes, and usable or the missing piece; a broken one hides no other.
2. A stranger's backend, found by entry point, is used exactly as ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lightning_sdk.cli.main import main
from lightning_sdk.home import Home
from support.cli_rollouts import write_rollout

BACKENDS = """
from lightning_sdk.errors import ExportError
from lightning_sdk.plugins import Report

class Counting:
    fidelity = "text"
    mode = "offline"
    summary = "counts rollouts"

    def __init__(self, at_least: int, label: str = "none"):
        self.at_least, self.label = at_least, label

    @classmethod
    def missing(cls):
        return None

    def consume(self, groups):
        sizes = [len(group.episodes) for group in groups]
        if sum(sizes) < self.at_least:
            raise ExportError(f"{sum(sizes)} rollouts are fewer than {self.at_least}")
        return Report(metrics={"mean_group": sum(sizes) / len(sizes)}, dropped={self.label: 2})

class Lacking(Counting):
    @classmethod
    def missing(cls):
        return "needs a GPU"

class Training(Counting):
    mode = "online"

class Raising(Counting):
    @classmethod
    def missing(cls):
        raise RuntimeError("surprise")

def function(): ...
"""


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution `strangers` with a backend of each kind."""
    site = tmp_path / "site"
    info = site / "strangers-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    names = ["Counting", "Lacking", "Training", "Raising", "Absent", "function"]
    points = "\n".join(f"{name.lower()} = strangers_backends:{name}" for name in names)
    (info / "entry_points.txt").write_text(f"[lightning_sdk.backends]\n{points}\n")
    (site / "strangers_backends.py").write_text(BACKENDS)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "strangers_backends", raising=False)


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert main(["backends", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_ours_is_usable(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys)["jsonl"] == {
        "name": "jsonl",
        "distribution": "agent-lightning-sdk",
        "mode": "offline",
        "fidelity": "text",
        "summary": "dataset of transitions, one JSON object a line",
        "usable": True,
        "problem": None,
    }
    assert main(["backends"]) == 0
    assert capsys.readouterr().out == (
        "backend   from                 mode     fidelity  state\n"
        "jsonl     agent-lightning-sdk  offline  text      "
        "usable: dataset of transitions, one JSON object a line\n"
        "torch_rl  agent-lightning-sdk  online   engine    "
        "usable: LightningRL with torch on this machine, all weights or LoRA\n"
    )


@pytest.mark.usefixtures("strangers")
def test_each_one_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed(capsys)
    assert {name: row["problem"] for name, row in rows.items()} == {
        "jsonl": None,
        "torch_rl": None,
        "counting": None,
        "training": None,
        "lacking": "needs a GPU",
        "raising": "surprise",
        "absent": "'absent' (strangers_backends:Absent, from strangers) does not load: AttributeError: "
        "module 'strangers_backends' has no attribute 'Absent'",
        "function": "'function' (strangers_backends:function, from strangers) is no backend: it has no mode, "
        "fidelity, summary, missing, consume",
    }
    assert rows["counting"]["distribution"] == "strangers"


@pytest.mark.usefixtures("strangers")
def test_a_strangers_backend_is_used_like_ours(capsys: pytest.CaptureFixture[str]) -> None:
    for number, task in enumerate(["a", "a", "b"]):
        write_rollout(Home.locate().spool, number, task_id=task)
    arguments = ["export", "--backend", "counting", "--set", "at_least=3", "--set", "label=other"]
    assert main(arguments) == 0
    assert capsys.readouterr() == ("rollouts    3\ngroups      2\nmean_group  1.5\ndropped     other 2\n", "")


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["counting"], "backend 'counting' needs the option 'at_least': give it with --set at_least="),
        (["counting", "--set", "at_least=9"], "1 rollouts are fewer than 9"),
        (
            ["counting", "--set", "at_least=1", "--out", "x"],
            "backend 'counting' has no option 'out'; its options are at_least, label",
        ),
        (["lacking"], "backend 'lacking' is not usable: needs a GPU"),
        (
            ["training", "--set", "at_least=1"],
            "backend 'training' is online: it cannot take stored rollouts, only its own policy's",
        ),
    ],
)
def test_what_it_cannot_do_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(Home.locate().spool, 1)
    assert main(["export", "--backend", *arguments]) == 2
    assert capsys.readouterr() == ("", f"lsdk: {sentence}\n")
