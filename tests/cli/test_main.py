"""What every command has in common.

1. `main` gives 0 (done), 1 (failed) or 2 (misuse, or an error with a known cause); 130 when interrupted, 141
   when the reader of our output has gone.
2. An error with a known cause is one line on stderr; a bug shows its traceback.
3. A listing of the commands imports none of them.
4. Whatever is printed, no locale and no terminal can be broken by it.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys

import click
import pytest
from rich.text import Text

from lightning_sdk.cli import main as main_module
from lightning_sdk.cli.console import print_json, show, width
from lightning_sdk.cli.main import COMMANDS, main
from lightning_sdk.errors import StoreError


def run_code(code: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **(env or {})}, capture_output=True, text=True
    )


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A command `probe` that raises, or calls, what the test puts in the list."""
    todo: list[object] = []

    @click.command()
    def probe() -> None:
        each = todo.pop()
        if isinstance(each, BaseException):
            raise each
        assert callable(each)
        each()

    module = type(sys)("lightning_sdk.cli.probe")
    module.command = probe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning_sdk.cli.probe", module)
    monkeypatch.setitem(main_module.COMMANDS, "probe", "For tests.")
    return todo


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for name, summary in COMMANDS.items():
        assert name in out
        assert " ".join(summary.split()) in " ".join(out.split())
    assert "lsdk show --last" in out


def test_listing_the_commands_imports_none_of_them() -> None:
    result = run_code(
        "import sys\nfrom lightning_sdk.cli.main import COMMANDS, main\nmain(['--help'])\n"
        "loaded = [n for n in COMMANDS if f'lightning_sdk.cli.{n}' in sys.modules]\n"
        "assert not loaded and 'rich' not in sys.modules and 'grpc' not in sys.modules, loaded"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"Usage: lsdk {name} ")
    assert "Example:\n" in out
    assert f"lsdk {name}" in out.partition("Example:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_listing_says_what_the_help_says(name: str) -> None:
    command = importlib.import_module(f"lightning_sdk.cli.{name}").command
    assert command.help.splitlines()[0] == COMMANDS[name]


@pytest.mark.parametrize("name", ["rollouts", "show", "stats", "export", "backends", "doctor"])
def test_every_command_that_prints_data_can_print_json(name: str) -> None:
    command = importlib.import_module(f"lightning_sdk.cli.{name}").command
    assert any("--json" in parameter.opts for parameter in command.params)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["rolouts"], "lsdk: no command is called 'rolouts': did you mean 'rollouts'? (see `lsdk --help`)\n"),
        (
            ["zzz"],
            f"lsdk: no command is called 'zzz': there are {', '.join(COMMANDS)} (see `lsdk --help`)\n",
        ),
        (
            ["show"],
            "lsdk: name a rollout (`lsdk rollouts` lists them) or say --last, not both "
            "(see `lsdk show --help`)\n",
        ),
        (
            ["show", "ab", "--last"],
            "lsdk: name a rollout (`lsdk rollouts` lists them) or say --last, not both "
            "(see `lsdk show --help`)\n",
        ),
        (
            ["rollouts", "--limit", "-1"],
            "lsdk: Invalid value for '--limit': -1 is not in the range x>=0 (see `lsdk rollouts --help`)\n",
        ),
        (
            ["export", "--set", "shard"],
            "lsdk: --set takes KEY=VALUE, not 'shard' (see `lsdk export --help`)\n",
        ),
        (
            ["export", "--set", "out=x"],
            "lsdk: say --out x instead of --set out=x (see `lsdk export --help`)\n",
        ),
    ],
)
def test_misuse_is_one_line_and_two(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", line)


def test_an_unknown_option_is_one_line_and_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", "--limt", "3"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lsdk: ")
    assert "--limit" in err
    assert err.count("\n") == 1


def test_an_error_with_a_known_cause_is_one_line_and_two(
    command: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    command.append(StoreError("the store is\nnot a database"))
    assert main(["probe"]) == 2
    assert capsys.readouterr() == ("", "lsdk: the store is not a database\n")


def test_a_bug_shows_its_traceback_and_is_one(
    command: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    command.append(RuntimeError("a bug"))
    assert main(["probe"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Traceback")
    assert err.endswith("RuntimeError: a bug\n")


def test_an_interrupt_is_quiet(command: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    # Not what a parent that ignores interrupts (nohup) left us.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command.append(lambda: signal.raise_signal(signal.SIGINT))
        assert main(["probe"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    out, err = capsys.readouterr()
    assert (out, err.strip()) == ("", "")


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import os, sys\n"
        "from lightning_sdk.cli import console, main\n"
        "import click\n"
        "@click.command()\n"
        "def probe():\n"
        "    for i in range(100_000): console.show(f'line {i}')\n"
        "module = type(sys)('probe'); module.command = probe\n"
        "sys.modules['lightning_sdk.cli.probe'] = module\n"
        "main.COMMANDS['probe'] = ''\n"
        "sys.exit(main.main(['probe']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "line 0\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141
    process.stderr.close()


HOSTILE = "caf\u00e9 \u2192 \ud800 end"


def test_text_that_a_locale_cannot_show_is_spelled_out() -> None:
    code = (
        "import sys, click\n"
        "from lightning_sdk.cli import main\n"
        "from lightning_sdk.cli.console import show, print_json\n"
        "@click.command()\n"
        f"def probe(): show({HOSTILE!r}); print_json({HOSTILE!r})\n"
        "module = type(sys)('probe'); module.command = probe\n"
        "sys.modules['lightning_sdk.cli.probe'] = module\n"
        "main.COMMANDS['probe'] = ''\n"
        "sys.exit(main.main(['probe']))\n"
    )
    ascii_only = run_code(code, env={"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"})
    assert ascii_only.stdout == 'caf\\xe9 -> \\ud800 end\n"caf\\u00e9 \\u2192 \\ud800 end"\n'
    utf8 = run_code(code, env={"PYTHONIOENCODING": "utf-8"})
    assert utf8.stdout == 'café → \\ud800 end\n"caf\\u00e9 \\u2192 \\ud800 end"\n'


def test_json_is_json_even_for_what_is_no_number() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json(float("nan"))


def test_piped_output_is_uncoloured_and_its_tables_are_not_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert (width(), width(table=True)) == (120, 10_000)
    show(Text("x" * 500 + "  ", style="bold red"), table=True)
    assert capsys.readouterr().out == "x" * 500 + "\n"
