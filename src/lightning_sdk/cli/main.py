"""`lsdk`: the table of commands, and what every command has in common.

Exit codes: 0 done, 1 failed, 2 misuse or an error with a known cause (one line on stderr), 130 interrupted
(Ctrl-C), 141 the reader of our output went away. `collect` and `serve` run until they are interrupted, so once
they listen, that is their end and gives 0.
"""

from __future__ import annotations

import codecs
import difflib
import importlib
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

import click

from lightning_sdk.cli import wording
from lightning_sdk.cli.example import example
from lightning_sdk.errors import LightningError
from lightning_sdk.version import DISTRIBUTION, version

# Command name → what it does, in the order of `lsdk --help`. Its module is lightning_sdk.cli.<name>.
COMMANDS: Final[dict[str, str]] = {
    "run": "Run an agent over tasks, and record every rollout.",
    "work": "Run rollouts for others, as `lsdk run --kind remote` and `lsdk train` ask for them.",
    "collect": "Receive records over the network and store them.",
    "rollouts": "List rollouts, newest first.",
    "show": "Show one rollout as a tree.",
    "reward": "Reward a rollout after it has ended.",
    "explain": "Explain what the calls of a rollout are worth, and why.",
    "stats": "Sum up what was recorded, and what of it can be used.",
    "export": "Write a dataset with a backend.",
    "train": "Train the model of an agent on tasks.",
    "serve": "Serve MODEL, a local Hugging Face directory, to clients of OpenAI's and Anthropic's APIs.",
    "backends": "List the installed backends.",
    "doctor": "Check this installation and try a recording.",
}

FAILED: Final = 1
MISUSE: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
PIPE_CLOSED: Final = 128 + signal.SIGPIPE


class _PipeClosedError(Exception):
    """Carries a BrokenPipeError past click, which would end the process itself."""


class _Commands(click.Group):
    """Loads a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"lightning_sdk.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command is called {args[0]!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table: a listing imports no command.
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _PipeClosedError from error
        return result


@click.command(
    cls=_Commands,
    epilog=example("lsdk rollouts", "lsdk show --last", "lsdk export --out train.jsonl"),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(version(), "--version", prog_name=DISTRIBUTION, message="%(prog)s %(version)s")
@click.pass_context
def lsdk(context: click.Context) -> None:
    """Look at what your agents did, and turn it into learning data."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after the program's name; None takes those of the process.

    Returns:
        The exit code.
    """
    _make_output_total()
    _log_safely()
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        result = lsdk.main(arguments, prog_name="lsdk", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except _PipeClosedError:
        _discard_output()
        return PIPE_CLOSED
    except click.ClickException as error:
        return _fail(_usage_sentence(error))
    except LightningError as error:
        return _fail(str(error))
    except Exception:
        sys.stderr.write(wording.printable(traceback.format_exc()))
        return FAILED
    return result if isinstance(result, int) else 0


def _fail(sentence: str) -> int:
    sys.stderr.write(f"lsdk: {wording.one_line(sentence)}\n")
    return MISUSE


def _usage_sentence(error: click.ClickException) -> str:
    sentence = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        sentence += f" (see `{error.ctx.command_path} --help`)"
    return sentence


# What we print ourselves, for terminals that cannot show it.
_PLAIN: Final = {"→": "->", "…": "...", "·": "|", "✓": "ok", "✗": "!!"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    replaced = (
        _PLAIN.get(character) or character.encode("ascii", "backslashreplace").decode()
        for character in error.object[error.start : error.end]
    )
    return "".join(replaced), error.end


def _make_output_total() -> None:
    """Let any text be printed in any locale: models and tools answer what they like, lone surrogates too."""
    codecs.register_error("lsdk.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="lsdk.plain")


class _SafeFormatter(logging.Formatter):
    """Log lines quote what others sent."""

    def format(self, record: logging.LogRecord) -> str:
        return f"lsdk: {wording.printable(super().format(record))}"


def _log_safely() -> None:
    """Warnings go to stderr as they would by themselves, but cannot act on the terminal."""
    if not logging.root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_SafeFormatter())
        logging.root.addHandler(handler)


def _discard_output() -> None:
    """Send what is still buffered to nowhere, so that the interpreter does not complain at its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
