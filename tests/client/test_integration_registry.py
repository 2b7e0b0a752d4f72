"""Integrations: found by entry point, installed when their library is there, each isolated, all undone.

The plugins here are modules and distributions made on disk, found as a stranger's would be.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults, integrations, runtime
from lightning_sdk.errors import ConfigError
from lightning_sdk.testing import capture

Library = Callable[[], list[str]]

INTEGRATION = """
from lightning_sdk.plugins import PluginError

class Good:
    name = "good"
    target = "made_up_library"
    distribution = "made-up"
    versions = ">=1"

    def install(self, recorder):
        import made_up_library
        if made_up_library.refuses:
            raise PluginError("it has no method ask")
        made_up_library.log.append("installed")
        def undo():
            made_up_library.log.append("undone")
        return undo

class Incomplete:
    name = "incomplete"
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """A library and three integrations: one that works, one that does not load, one that is none."""
    site = tmp_path / "site"
    info = site / "made_up_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "made_up_library.py").write_text("log = []\nrefuses = False\n")
    (site / "made_up_plugins.py").write_text(INTEGRATION)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[lightning_sdk.integrations]\n"
        "good = made_up_plugins:Good\n"
        "broken = made_up_plugins:Missing\n"
        "incomplete = made_up_plugins:Incomplete\n"
    )
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()

    def imported() -> list[str]:
        log: list[str] = importlib.import_module("made_up_library").log
        return log

    yield imported
    integrations.uninstall_all()
    for name in ("good", "broken", "incomplete"):
        integrations._slots.pop(name, None)
    for module in ("made_up_library", "made_up_plugins"):
        sys.modules.pop(module, None)


def state(name: str) -> str:
    return next(status.state for status in integrations.status() if status.name == name)


def test_it_is_installed_when_its_library_is_imported_after_init(library: Library) -> None:
    ls.init(integrations=["good"])
    assert "made_up_library" not in sys.modules
    assert library() == ["installed"]
    assert state("good") == "installed"


def test_it_is_installed_at_once_when_its_library_was_imported_before(
    library: Library,
) -> None:
    log = library()
    ls.init(integrations=["good"])
    assert log == ["installed"]


def test_shutdown_takes_the_patches_off_and_a_new_init_puts_them_back(
    library: Library,
) -> None:
    log = library()
    ls.init(integrations=["good"])
    ls.shutdown()
    assert log == ["installed", "undone"]
    ls.init(integrations=["good"])
    assert log == ["installed", "undone", "installed"]


def test_replacing_the_configuration_changes_what_is_installed(library: Library) -> None:
    log = library()
    with ls.rollout():
        assert log == ["installed"]
    ls.init(integrations=())
    assert log == ["installed", "undone"]
    assert state("good") in ("off", "absent")


def test_a_capture_installs_all_and_leaves_what_it_found(library: Library) -> None:
    log = library()
    with capture(), capture():
        assert log == ["installed"]
    assert log == ["installed", "undone"]
    ls.init(integrations=["good"])
    with capture():
        pass
    assert log == ["installed", "undone", "installed"]


def test_one_that_does_not_load_or_fit_is_a_state_and_stops_no_other(
    library: Library,
) -> None:
    log = library()
    before = faults.counters().get("error.integration broken", 0)
    ls.init()
    assert log == ["installed"]
    assert faults.counters()["error.integration broken"] == before + 1
    found = {status.name: status for status in integrations.status()}
    assert found["broken"].state == "broken"
    assert "made-up-plugins" in found["broken"].detail
    assert found["incomplete"].state == "broken"
    assert found["good"].target == "made_up_library"
    assert found["good"].installed_version is None


def test_one_that_refuses_its_library_is_failed_with_its_reason(library: Library) -> None:
    library()
    sys.modules["made_up_library"].refuses = True  # type: ignore[attr-defined]
    ls.init(integrations=["good"])
    status = next(status for status in integrations.status() if status.name == "good")
    assert (status.state, status.detail) == ("failed", "PluginError: it has no method ask")


def test_status_before_any_init_imports_no_library(library: Library) -> None:
    assert state("good") == "absent"
    assert "made_up_library" not in sys.modules


ROUTING = {"policy_endpoint": "http://127.0.0.1:8000/v1", "agents": "writer"}


def test_where_agents_are_routed_an_integration_that_failed_is_refused(library: Library) -> None:
    ls.init(integrations=["good"], **ROUTING)
    library()
    assert state("good") == "installed"
    ls.shutdown()

    sys.modules["made_up_library"].refuses = True  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"failed \(good: PluginError: it has no method ask\)"):
        ls.init(integrations=["good"], **ROUTING)
    with pytest.raises(ConfigError, match="broken: "):
        ls.init(**ROUTING)
    assert not runtime.configured()


def test_where_it_fails_later_the_log_says_that_nothing_is_routed(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each sentence is logged once.
    monkeypatch.setattr(faults, "_logged", set())
    (tmp_path / "site" / "made_up_library.py").write_text("refuses = True")
    ls.init(integrations=["good"], **ROUTING)
    importlib.import_module("made_up_library")
    assert "through good do NOT go to the policy endpoint" in caplog.text
