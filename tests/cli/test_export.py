"""`lsdk export`.

1. It hands every rollout to the backend, grouped by task, and says what was written.
2. A group is handed on as soon as its last rollout was read, and whole.
3. A backend, format or option that does not exist is refused in one sentence before anything is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli.grouping import Snapshot
from lightning_sdk.cli.main import main
from lightning_sdk.cli.reading import Loaded
from lightning_sdk.collector.reader import open_reader
from lightning_sdk.home import Home
from support.cli_rollouts import rollout_id, write_rollout


@pytest.fixture
def spool() -> Path:
    return Home.locate().spool


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_transition_is_written_and_summed_up(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1, calls=2)
    write_rollout(spool, 2, task_id="other", failed_call=True)
    out = tmp_path / "train.jsonl"
    assert main(["export", "--out", str(out), "--format", "transitions"]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    assert [(line["rollout_id"], line["step"]) for line in lines(out)] == [
        (rollout_id(1), 0),
        (rollout_id(1), 1),
        (rollout_id(2), 0),
    ]
    facts = dict(line.split(maxsplit=1) for line in printed.splitlines())
    assert facts["data"] == str(out)
    assert (facts["rollouts"], facts["groups"], facts["transitions"]) == ("2", "2", "3")
    assert facts["usable"] == "0 by tokens; 2 more as text; 1 not at all"
    assert printed.splitlines()[-1].split("  ") == ["drop reasons", "error 1, no_token_ids 2"]


def test_the_summary_as_json(spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 1)
    write_rollout(spool, 2)
    assert main(["export", "--json", "--out", str(tmp_path / "x.jsonl"), "--run", "nightly"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rollouts"], report["groups"], report["metrics"]["transitions"]) == (2, 1, 2)
    assert report["outputs"]["data"] == str(tmp_path / "x.jsonl")


def test_groups_are_whole_and_handed_on_as_soon_as_they_are(spool: Path) -> None:
    # Read in this order: a b a c b. A group goes on when its last member was read.
    for number, task in enumerate(["a", "b", "a", "c", "b"], start=1):
        write_rollout(spool, number, task_id=task)
    read: list[str] = []

    def watch(rollouts: Iterator[Loaded]) -> Iterable[Loaded]:
        for loaded in rollouts:
            read.append(loaded.summary.task_id)
            yield loaded

    reader = open_reader(Home.locate())
    snapshot = Snapshot(reader, RolloutQuery())
    write_rollout(spool, 6, task_id="a")
    open_reader(Home.locate()).close()  # adopts what began after the snapshot
    handed_on = [
        ([episode.rollout_id for episode in group.episodes], len(read)) for group in snapshot.groups(watch)
    ]
    reader.close()
    assert handed_on == [
        ([rollout_id(1), rollout_id(3)], 3),
        ([rollout_id(4)], 4),
        ([rollout_id(2), rollout_id(5)], 5),
    ]
    assert (snapshot.rollouts, snapshot.handed_on) == (5, 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--backend", "jsonll"],
            "lsdk: no backend is called 'jsonll': did you mean 'jsonl'? installed are jsonl, torch_rl\n",
        ),
        (["--format", "parquet"], "lsdk: format 'parquet' is unknown: the formats are transitions\n"),
        (
            ["--set", "shards=3"],
            "lsdk: backend 'jsonl' has no option 'shards'; its options are out, format\n",
        ),
        (["--out", "."], "lsdk: out '.' is a directory: name a file in it, such as transitions.jsonl\n"),
    ],
)
def test_what_does_not_exist_is_refused(
    arguments: Sequence[str], sentence: str, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1)
    assert main(["export", *arguments]) == 2
    assert capsys.readouterr() == ("", sentence)
    assert len(list(spool.glob("*.seg"))) == 1  # not even adopted


def test_nothing_to_export_is_refused_and_leaves_the_file(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1)
    out = tmp_path / "old.jsonl"
    out.write_text("old\n")
    assert main(["export", "--out", str(out), "--project", "none"]) == 2
    assert capsys.readouterr() == (
        "",
        "lsdk: there is nothing to export: no rollout matches --project 'none': `lsdk rollouts` alone lists what "
        "there is (see `lsdk export --help`)\n",
    )
    assert out.read_text() == "old\n"


def test_a_dash_is_no_file(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rollout(spool, 1)
    assert main(["export", "--out", "-"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("lsdk: --out - would be a file of that name")
    assert not list(tmp_path.glob("-*"))


def test_a_place_that_cannot_be_written_is_one_sentence(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1)
    (tmp_path / "file").write_text("")
    assert main(["export", "--out", str(tmp_path / "file" / "train.jsonl")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lsdk: ")
    assert err.count("\n") == 1
