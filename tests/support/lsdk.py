"""`lsdk` in this process, as a person runs it."""

from __future__ import annotations

import pytest

from lightning_sdk.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The output of a command that works and has nothing to say on stderr."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, err) == (0, ""), err
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which a command refuses."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("lsdk: ")
    assert err.count("\n") == 1
    return err
