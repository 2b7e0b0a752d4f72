"""`lsdk reward`: a reward that comes later, from a command line.

1. It goes to the rollout's last call, or to the call that is named, as one that a program emits by rollout id.
2. It always has an id, which is printed; the same id again replaces it.
3. A rollout or call that is not stored is refused, unless by --force.
4. With a collector it is there when the command has ended; without one it waits in the spool.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_sdk.cli.main import main
from lightning_sdk.collector.store.home import open_home_store
from lightning_sdk.home import Home
from support.cli_rollouts import rollout_id, write_rollout
from support.collectors import collector_thread
from support.lsdk import refused, run


def shown(capsys: pytest.CaptureFixture[str], rollout: str, *arguments: str) -> dict[str, Any]:
    episode: dict[str, Any] = json.loads(run(capsys, "show", rollout, "--json", *arguments))
    return episode


def test_the_last_call_is_rewarded(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 1, calls=2, reward=None)
    assert run(capsys, "reward", "0001", "0.5", "--id", "judge") == (
        f"reward +0.5 (reward) for rollout {rollout_id(1)}, its last call\n"
        "id judge: give it as --id to replace this reward\n"
    )
    episode = shown(capsys, "0001")
    assert episode["return"] == 0.5
    assert episode["complete"] is True
    assert [each["reward"] for each in episode["transitions"]] == [0.0, 0.5]
    [reward] = episode["rewards"]
    assert (reward["bound"], reward["reward_id"], reward["components"]) == (
        "rollout",
        "judge",
        {"reward": 0.5},
    )


@pytest.mark.parametrize("call", ["0", "ca_1_0", "ca_1_0"[3:]])
def test_a_call_is_named_by_its_step_or_its_id(
    call: str, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1, calls=2, reward=None)
    out = run(capsys, "reward", "0001", "-1", "--call", call, "--choice", "0", "--name", "tone")
    assert out.startswith(f"reward -1 (tone) for rollout {rollout_id(1)}, call ca_1_0, choice 0\nid rw_")
    episode = shown(capsys, "0001")
    assert [each["reward_components"] for each in episode["transitions"]] == [{"tone": -1.0}, {}]
    assert episode["rewards"][0]["bound"] == "call"


def test_rewards_add_up_and_one_with_the_same_id_replaces(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1)
    first = json.loads(run(capsys, "reward", "0001", "2", "--json"))
    assert first == {
        "reward_id": first["reward_id"],
        "rollout_id": rollout_id(1),
        "call_id": None,
        "choice": None,
        "name": "reward",
        "value": 2.0,
        "arrived": True,
    }
    assert shown(capsys, "0001")["return"] == 3.0
    run(capsys, "reward", "0001", "5", "--id", first["reward_id"])
    assert shown(capsys, "0001")["return"] == 6.0
    run(capsys, "reward", "0001", "5")
    assert shown(capsys, "0001")["return"] == 11.0


def test_what_is_not_there_is_refused(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 1)
    assert "no rollout's id begins with '9'" in refused(capsys, "reward", "9", "1")
    assert "has no call '7'" in refused(capsys, "reward", "0001", "1", "--call", "7")
    assert "has no choice 3, but 0" in refused(capsys, "reward", "0001", "1", "--call", "0", "--choice", "3")
    assert shown(capsys, "0001")["return"] == 1.0


def test_force_takes_what_is_not_there_yet(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "reward", rollout_id(1), "1", "--force")
    run(capsys, "reward", rollout_id(1), "2", "--force", "--call", "ca_1_0")
    write_rollout(spool, 1, calls=2, reward=None)
    assert [each["reward"] for each in shown(capsys, "0001")["transitions"]] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nan"], "give a finite number"),
        (["-inf"], "give a finite number"),
        (["good"], "'good' is not a valid float"),
        (["1", "--choice", "0"], "--choice needs --call"),
        (["1", "--name", ""], "--name is empty"),
        (["1", "--id", "x" * 300], "--id has 300 characters"),
    ],
)
def test_what_cannot_be_a_reward_is_refused(
    arguments: list[str], complaint: str, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1)
    assert complaint in refused(capsys, "reward", "0001", *arguments)


def test_a_collector_has_it_when_the_command_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Home.locate(tmp_path / "served")
    write_rollout(served.spool, 1, reward=None)
    assert main(["rollouts", "--home", str(served.path)]) == 0
    capsys.readouterr()
    store = open_home_store(served)
    try:
        with collector_thread(store) as address:
            endpoint = f"grpc://{address}"
            run(capsys, "reward", "0001", "0.25", "--endpoint", endpoint)
            assert shown(capsys, "0001", "--endpoint", endpoint)["return"] == 0.25
    finally:
        store.close()
    assert list(Home.locate().spool.glob("*.seg")) == []
