"""Where commands write: data to stdout, everything else to stderr and only for a person who looks on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment, Segments

from lightning_sdk.cli import wording

T = TypeVar("T")

# Without a terminal, lines are for files and other programs: prose has this width, tables are not cut.
_PIPED_WIDTH: Final = 120
_PIPED_TABLE_WIDTH: Final = 10_000


def width(*, table: bool = False) -> int:
    """Columns to fill. `table`: rows are not cut when the output goes to a pipe or a file."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return _PIPED_TABLE_WIDTH if table else _PIPED_WIDTH
    return Console().width


def show(*renderables: RenderableType, table: bool = False, error: bool = False) -> None:
    """Print data, coloured for a terminal and plain for a pipe, without blanks at the ends of lines.

    No text in it can act on the terminal, whoever wrote it.

    Args:
        renderables: printed one below the other.
        table: see `width`.
        error: to stderr.
    """
    console = _console(error=error, width=width(table=table))
    with console.capture() as captured:
        for renderable in renderables:
            # Texts from records were made printable before they were laid out. This is for the one forgotten.
            safe = [Segment(wording.printable(each.text), each.style) for each in console.render(renderable)]
            console.print(Segments(safe), end="")
    stream = sys.stderr if error else sys.stdout
    for line in captured.get().split("\n")[:-1]:
        # Not by click.echo, which would replace what an ASCII stream cannot show.
        stream.write(f"{line.rstrip()}\n")


def notice(text: str) -> None:
    """Tell on stderr, terminal or not, why there is no data."""
    sys.stderr.write(f"{wording.one_line(text)}\n")


def remark(text: str) -> None:
    """Tell a person something beside the data. Says nothing when stderr is no terminal."""
    console = _console(error=True)
    if console.is_terminal:
        console.print(wording.printable(text), style="dim")


def _console(*, error: bool, width: int | None = None) -> Console:
    """A console that takes text as it is: no markup, no emoji codes, no guessing at colours."""
    return Console(stderr=error, highlight=False, markup=False, emoji=False, width=width)


def print_json(value: Any) -> None:
    """Print `value` as JSON: ASCII only, so that no locale and no lone surrogate can break it."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def counted(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Pass `items` on; where stderr is a terminal, a progress bar counts them there and then disappears."""
    console = _console(error=True)
    if not console.is_terminal:
        yield from items
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        yield from bar.track(items, total=total, description=description)
