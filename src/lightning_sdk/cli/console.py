"""Where commands write: data to stdout, everything else to stderr and only for a person who looks on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")

# Without a terminal, lines are for files and other programs: prose has this width, tables are not cut.
_PIPED_WIDTH: Final = 120
_PIPED_TABLE_WIDTH: Final = 10_000


def width(*, table: bool = False) -> int:
    """Columns to fill. `table`: rows are not cut when the output goes to a pipe or a file."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return _PIPED_TABLE_WIDTH if table else _PIPED_WIDTH
    return Console().width


def show(*renderables: RenderableType, table: bool = False) -> None:
    """Print data, coloured for a terminal and plain for a pipe, without blanks at the ends of lines.

    Args:
        renderables: printed one below the other.
        table: see `width`.
    """
    console = Console(highlight=False, markup=False, emoji=False, width=width(table=table))
    with console.capture() as captured:
        for renderable in renderables:
            console.print(renderable)
    for line in captured.get().splitlines():
        # Not by click.echo, which would replace what an ASCII stream cannot show.
        sys.stdout.write(f"{line.rstrip()}\n")


def remark(text: str) -> None:
    """Tell a person something beside the data. Says nothing when stderr is no terminal."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        console.print(text, style="dim")


def print_json(value: Any) -> None:
    """Print `value` as JSON: ASCII only, so that no locale and no lone surrogate can break it."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def counted(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Pass `items` on; where stderr is a terminal, a progress bar counts them there and then disappears."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
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
