"""Backend jsonl.

1. One line a transition, the native record; groups and episodes in the order given.
2. The manifest beside it counts what is in it, and its checksum is that of the data.
3. All or nothing: whatever goes wrong, what was there before stays and nothing half-written does.
4. What cannot be done is said in one sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_backends.jsonl import JsonlBackend
from lightning_sdk.errors import ConfigError, ExportError, StoreError
from lightning_sdk.mdp import Group, assemble, group_episodes, native_record
from lightning_sdk.plugins import BACKENDS, Backend, find
from support.record_factory import Tape, chat_body, chat_request


def groups() -> list[Group]:
    """Two groups: a finished rollout with reward, a failed one without; a running one."""
    good, bad, running = (
        Tape(f"p{at}", rollout=f"ro_{at}", group="g" if at < 2 else "h", second=100 * at) for at in range(3)
    )
    good.start()
    good.engine_call("a", [1, 2], [3])
    good.call("b", chat_body("é"))
    good.reward(1.0, "rollout")
    good.finish()
    bad.start()
    bad.call("c", b"", outcome="error")
    bad.finish("error")
    running.start()
    running.call("d")
    return group_episodes(assemble([*good.records, *bad.records, *running.records]))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_is_found_by_its_name() -> None:
    backend = find(BACKENDS, "jsonl").load()
    assert backend is JsonlBackend
    assert isinstance(backend(), Backend)
    assert backend.missing() is None


def test_a_line_is_a_native_record(tmp_path: Path) -> None:
    out = tmp_path / "made" / "data.jsonl"
    report = JsonlBackend(out=out).consume(groups())
    expected = [native_record(t) for g in groups() for e in g.episodes for t in e.transitions]
    assert read(out) == expected
    assert list(read(out)[0]) == list(expected[0])
    assert [line["call_id"] for line in read(out)] == ["a", "b", "c", "d"]
    assert report.outputs == {"data": out, "manifest": tmp_path / "made" / "data.jsonl.manifest.json"}
    assert (report.metrics["groups"], report.metrics["rollouts"], report.metrics["transitions"]) == (2, 3, 4)
    # Marked transitions are in the data: nothing is dropped.
    assert report.dropped == {}
    assert report.metrics["drop_reason.no_token_ids"] == 2


def test_the_manifest_counts_what_is_in_the_data(tmp_path: Path) -> None:
    out = tmp_path / "data.jsonl"
    JsonlBackend(out=str(out)).consume(groups())
    manifest = json.loads((tmp_path / "data.jsonl.manifest.json").read_text())
    created = manifest.pop("created")
    assert created.endswith("+00:00")
    assert manifest.pop("created_by").startswith("agent-lightning-sdk ")
    assert manifest == {
        "schema_version": 1,
        "format": "transitions",
        "file": "data.jsonl",
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
        "bytes": out.stat().st_size,
        "lines": 4,
        "groups": 2,
        "rollouts": 3,
        "rollouts_by_outcome": {"failed": 1, "running": 1, "succeeded": 1},
        "rollouts_incomplete": 1,
        "rollouts_with_reward": 1,
        "rollouts_without_reward": 2,
        "transitions": 4,
        "transitions_by_fidelity": {"engine": 1, "text": 3},
        "transitions_by_drop_reason": {"error": 1, "no_token_ids": 2},
    }


def test_the_same_episodes_give_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("one.jsonl", "two.jsonl"):
        JsonlBackend(out=tmp_path / name).consume(groups())
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]


def test_text_and_numbers_that_few_writers_take_are_written_all_the_same(tmp_path: Path) -> None:
    tape = Tape()
    tape.call("a", request=chat_request("half of a pair: \ud83d"))
    tape.call("b", request=chat_request("hi", tool_choice=2**80))
    JsonlBackend(out=tmp_path / "data.jsonl").consume(group_episodes(assemble(tape.records)))
    first, second = read(tmp_path / "data.jsonl")
    assert first["observation"]["messages"][0]["content"] == "half of a pair: \ud83d"
    assert second["observation"]["tool_choice"] == 2**80


def test_a_dataset_is_replaced_and_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    out = tmp_path / "data.jsonl"
    out.write_text("old")
    JsonlBackend(out=out).consume(groups())
    assert len(read(out)) == 4
    other = tmp_path / "other"
    other.touch()
    assert stat.S_IMODE(out.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


def test_nothing_to_export_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="nothing to export"):
        JsonlBackend(out=tmp_path / "data.jsonl").consume([])
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_fails_midway_keeps_its_own_error_and_the_old_data(tmp_path: Path) -> None:
    def failing() -> Iterator[Group]:
        yield groups()[0]
        raise StoreError("the store went away")

    out = tmp_path / "data.jsonl"
    out.write_text("old")
    with pytest.raises(StoreError, match="went away"):
        JsonlBackend(out=out).consume(failing())
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]
    assert out.read_text() == "old"


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'parquet'.*transitions"):
        JsonlBackend(format="parquet")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        JsonlBackend(out=tmp_path)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="cannot be written"):
        JsonlBackend(out=tmp_path / "file" / "data.jsonl").consume(groups())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ExportError, match="Permission denied"):
        JsonlBackend(out=tmp_path / "data.jsonl").consume(groups())


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from lightning_backends.jsonl import JsonlBackend
from lightning_sdk.errors import ExportError
from lightning_sdk.mdp import assemble, group_episodes
from support.record_factory import Tape, chat_request

tape = Tape()
for at in range(int(sys.argv[3])):
    tape.call(f"call {at}", request=chat_request("x" * 10_000))
groups = group_episodes(assemble(tape.records))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    JsonlBackend(out=Path(sys.argv[1])).consume(groups)
except ExportError as error:
    print(error)
"""


@pytest.mark.parametrize("calls", [1, 300], ids=["met at the end", "met midway"])
def test_a_file_system_that_takes_no_more_leaves_the_old_data(tmp_path: Path, calls: int) -> None:
    out = tmp_path / "data.jsonl"
    out.write_text("old")
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(out), str(tests), str(calls)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "cannot be written (File too large)" in done.stdout
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]
