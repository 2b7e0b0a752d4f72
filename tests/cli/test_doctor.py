"""`lsdk doctor`.

1. In a working installation nothing is broken, and one real call is recorded exactly once.
2. What is broken says so, and makes the exit code 1; what is merely not installed does not.
3. It records nothing of its own into the user's state.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sdk._proto.records_pb2 import Counters, Record
from lightning_sdk.cli.main import main
from lightning_sdk.client import faults
from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.home import Home
from lightning_sdk.ids import new_producer
from support.cli_rollouts import write_rollout


def examined(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and "section/name" to state and detail."""
    code = main(["doctor", "--json", *arguments])
    checks = json.loads(capsys.readouterr().out)
    return code, {f"{each['section']}/{each['name']}": (each["state"], each["detail"]) for each in checks}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a test can install distributions."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    return site


def install(site: Path, name: str, version: str, entry_points: str = "") -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_a_working_installation(capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(Home.locate().spool, 1)
    code, checks = examined(capsys)
    assert code == 0, [check for check in checks.items() if check[1][0] == "broken"]
    assert checks["self-test/openai call"] == ("ok", "one call, recorded once, with request and response")
    assert checks["integrations/openai"][0] == "ok"
    assert checks["extras/server"] == ("ok", "installed")
    assert checks["versions/grpcio"][0] == "ok"
    assert checks["state/store"] == ("ok", f"{Home.locate().store}: records 9, producers 1, rollouts 1")
    assert checks["state/spool"] == ("ok", f"{Home.locate().spool}: 0 records in 0 segments")
    assert checks["state/collector"] == ("absent", "none runs here, and none is needed")


def test_its_own_call_is_not_among_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert examined(capsys)[0] == 0
    assert main(["stats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["store"]["counters"]["records"] == 0


def test_a_person_reads_it_section_by_section(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    sections = ["versions", "extras", "integrations", "state", "self-test"]
    assert [line.strip() for line in out.splitlines() if line.strip() in sections] == sections
    assert "✓  openai call" in out


def test_a_collector_that_cannot_be_reached_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = examined(capsys, "--endpoint", "grpc://127.0.0.1:1")
    assert code == 1
    assert checks["state/collector"][0] == "broken"
    assert "grpc://127.0.0.1:1" in checks["state/collector"][1]


def test_a_state_that_cannot_be_read_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    Home.locate().ensure()
    Home.locate().spool.write_text("")
    code, checks = examined(capsys)
    assert code == 1
    assert checks["state/spool"][0] == "broken"
    assert checks["self-test/openai call"][0] == "ok"


def test_records_that_wait_for_a_collector_want_a_look(capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(Home.locate().spool, 1, destination="grpc://127.0.0.1:5555")
    code, checks = examined(capsys)
    assert code == 0
    assert checks["state/waiting"] == (
        "warning",
        f"9 records in {Home.locate().spool} wait for grpc://127.0.0.1:5555: `lsdk collect --port 5555` takes "
        "them in",
    )


@pytest.mark.parametrize(
    ("values", "state", "told"),
    [
        ({"calls_outside_rollout": 3}, "ok", "calls_outside_rollout 3"),
        ({"error.rewards": 1}, "warning", "error.rewards 1; error.… are errors inside lightning_sdk"),
    ],
)
def test_what_clients_counted_is_told_and_their_errors_want_a_look(
    values: dict[str, int], state: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = SpoolWriter(Home.locate().spool, new_producer(), destination="")
    writer.append(Record(counters=Counters(values=values)).SerializeToString())
    writer.close()
    code, checks = examined(capsys)
    assert code == 0
    assert checks["state/clients"][0] == state
    assert checks["state/clients"][1].startswith(told)


def test_what_went_wrong_in_this_process_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_counters", {"error.call_sent": 2})
    checks = examined(capsys)[1]
    assert checks["state/this process"][0] == "warning"
    assert checks["state/this process"][1].startswith("error.call_sent 2; ")


def test_without_the_openai_package_and_torch_nothing_is_broken() -> None:
    # In a process of its own, in which neither was imported yet: as far as it can see, they are not there.
    hide = (
        "import sys\n"
        "from importlib import metadata\n"
        "hidden = ('openai', 'torch', 'transformers')\n"
        "sys.modules.update(dict.fromkeys(hidden))\n"
        "found = metadata.version\n"
        "def version(name):\n"
        "    if name in hidden: raise metadata.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "metadata.version = version\n"
        "from lightning_sdk.cli.main import main\n"
        "sys.exit(main(['doctor', '--json']))\n"
    )
    result = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    checks = {f"{each['section']}/{each['name']}": each for each in json.loads(result.stdout)}
    for name in ("versions/openai", "versions/torch", "integrations/openai", "self-test/openai call"):
        assert checks[name]["state"] == "absent", name
        assert "not installed" in checks[name]["detail"]


def test_the_other_product_beside_ours_is_named(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "lightning-sdk", "2026.10.13")
    code, checks = examined(capsys)
    assert code == 0
    state, detail = checks["versions/lightning-sdk"]
    assert state == "warning"
    assert detail.startswith("2026.10.13 is installed too: another product with the same import name")


def test_an_integration_that_does_not_fit_its_library_is_broken(site: Path) -> None:
    install(site, "somelib", "9.0")
    (site / "somelib.py").write_text("")
    points = "strange = strangers_integration:Strange\nold = strangers_integration:Old\n"
    install(site, "strangers", "1.0", f"[lightning_sdk.integrations]\n{points}")
    (site / "strangers_integration.py").write_text(
        "from lightning_sdk.errors import PluginError\n"
        "class Strange:\n"
        "    name, target, distribution, versions = 'strange', 'somelib', 'somelib', '<2'\n"
        "    def install(self, recorder):\n"
        "        raise PluginError('somelib has no chat')\n"
        "class Old(Strange):\n"
        "    name = 'old'\n"
        "    def install(self, recorder):\n"
        "        return lambda: None\n"
    )
    # In a process of its own, which the strangers leave with it.
    result = subprocess.run(
        [sys.executable, "-m", "lightning_sdk", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": str(site), "LIGHTNING_STRICT": ""},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1, result.stderr
    checks = {each["name"]: (each["state"], each["detail"]) for each in json.loads(result.stdout)}
    assert checks["strange"] == ("broken", "somelib 9.0: PluginError: somelib has no chat")
    assert checks["old"] == ("warning", "somelib 9.0 can be patched, but is outside the tested versions <2")
    assert checks["openai call"][0] == "ok"
