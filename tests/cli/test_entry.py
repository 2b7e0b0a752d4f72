"""`lsdk` starts only in an installation that is ours and whole.

1. A package of the other product, alone or merged into our folder, is refused with one sentence and the mend.
2. What the [server] extra lacks is named, with the command that installs it.
3. Nothing is imported from a package that is not ours.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_sdk
import lsdk


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as site-packages would be: lsdk.py beside a copy of our package's top level."""
    site = tmp_path / "site"
    package = site / "lightning_sdk"
    package.mkdir(parents=True)
    ours = Path(lightning_sdk.__path__[0])
    for path in ours.glob("*.py"):
        shutil.copy(path, package)
    shutil.copy(lsdk.__file__, site)
    return site


def run_in(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -S: no site-packages, so that only this folder is found.
    return subprocess.run(
        [sys.executable, "-S", "-c", "import sys, lsdk; sys.exit(lsdk.main())", *arguments],
        env={"PYTHONPATH": str(site), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )


FOREIGN = "import sys\nsys.exit('imported the other product')\n"


def test_the_other_products_package_is_refused_without_importing_it(site: Path) -> None:
    shutil.rmtree(site / "lightning_sdk")
    (site / "lightning_sdk").mkdir()
    (site / "lightning_sdk" / "__init__.py").write_text(FOREIGN)

    result = run_in(site, "rollouts")

    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        "lsdk: the installed package lightning_sdk is not that of agent-lightning-sdk: another product, the "
        "distribution lightning-sdk, uses the same name and has replaced files; run "
        "`pip uninstall -y lightning-sdk` and then "
        "`pip install --force-reinstall --no-deps agent-lightning-sdk`\n"
    )


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(
            lambda package: (package / "__init__.py").write_text(FOREIGN), id="theirs was installed over ours"
        ),
        pytest.param(
            lambda package: (package / "__init__.py").unlink(), id="theirs was uninstalled from over ours"
        ),
        pytest.param(lambda package: (package / "version.py").unlink(), id="a file of ours is gone"),
        pytest.param(lambda package: shutil.rmtree(package), id="nothing is there"),
    ],
)
def test_a_merged_or_damaged_folder_is_refused(site: Path, damage: object) -> None:
    damage(site / "lightning_sdk")  # type: ignore[operator]
    result = run_in(site, "--version")
    assert result.returncode == 2
    assert result.stderr.startswith(
        "lsdk: the installed package lightning_sdk is not that of agent-lightning-sdk"
    )
    assert result.stderr.count("\n") == 1


def test_a_base_install_is_told_which_extra_it_needs(site: Path) -> None:
    result = run_in(site, "--help")
    assert result.returncode == 2
    tomli = "tomli, " if sys.version_info < (3, 11) else ""
    assert result.stderr == (
        "lsdk: the command line needs aiohttp, click, numpy, opentelemetry-proto, orjson, packaging, "
        f"prometheus-client, pydantic, rich, starlette, {tomli}uvicorn, which the base install leaves out: "
        "run `pip install 'agent-lightning-sdk[server]'`\n"
    )


def test_this_installation_is_accepted() -> None:
    assert lsdk.foreign_package() is None
    assert lsdk.missing_extra() is None


def test_the_libraries_asked_for_are_those_of_the_extra() -> None:
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extra = re.search(r"^server = \[\n(.*?)^\]", pyproject, re.MULTILINE | re.DOTALL)
    assert extra is not None
    wanted = set(re.findall(r'"([a-z-]+)', extra.group(1)))
    if sys.version_info >= (3, 11):
        wanted.remove("tomli")
    assert set(lsdk.SERVER_MODULES) == wanted


def test_python_dash_m_is_the_same_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "lightning_sdk", "--version"], capture_output=True, text=True
    )
    assert result.returncode == 0
    assert result.stdout.startswith("agent-lightning-sdk ")


def test_an_interrupt_while_the_command_line_is_loaded_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    loaded = type(sys)("lightning_sdk.cli.main")
    loaded.main = interrupted  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning_sdk.cli.main", loaded)
    assert lsdk.main() == 130
