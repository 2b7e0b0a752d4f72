"""Examples at the end of `--help`."""

from __future__ import annotations


def example(*lines: str) -> str:
    """The epilog of a command: lines to type, kept as they are."""
    # click rewraps a paragraph unless it starts with a backspace on a line of its own.
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])
