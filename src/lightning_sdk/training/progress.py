"""What a person sees while a run goes on: a line a round on stderr, and what it is doing now."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Protocol

from rich.console import Console
from rich.status import Status

_PHASES = ("rollouts", "assembly", "training", "publishing", "validation", "saving")


class Progress(Protocol):
    """Is told what happens."""

    def doing(self, what: str) -> None:
        """From now on the run does this."""

    def round_done(self, rounds_done: int, rounds: int, metrics: Mapping[str, float]) -> None:
        """A round is over."""

    def validated(self, rounds_done: int, metrics: Mapping[str, float], *, best: bool) -> None:
        """A validation is over."""

    def say(self, sentence: str) -> None:
        """Something that a person should know."""

    def close(self) -> None:
        """Nothing more comes."""


class Silent:
    """Tells nobody. See `Progress`."""

    def doing(self, what: str) -> None:
        """Nothing."""

    def round_done(self, rounds_done: int, rounds: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def validated(self, rounds_done: int, metrics: Mapping[str, float], *, best: bool) -> None:
        """Nothing."""

    def say(self, sentence: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class OnTerminal:
    """Writes to stderr. See `Progress`."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._status: Status | None = None

    def doing(self, what: str) -> None:
        """Beside a spinner."""
        if self._status is None:
            self._status = self._console.status(what)
            self._status.start()
        self._status.update(what)

    def round_done(self, rounds_done: int, rounds: int, metrics: Mapping[str, float]) -> None:
        """One line."""
        self._console.print(round_line(rounds_done, rounds, metrics), soft_wrap=True)

    def validated(self, rounds_done: int, metrics: Mapping[str, float], *, best: bool) -> None:
        """One line."""
        self._console.print(validation_line(rounds_done, metrics, best=best), style="bold", soft_wrap=True)

    def say(self, sentence: str) -> None:
        """One line."""
        self._console.print(printable(sentence), soft_wrap=True)

    def close(self) -> None:
        """Takes the spinner away."""
        if self._status is not None:
            self._status.stop()
            self._status = None


def for_terminal() -> Progress:
    """`OnTerminal` where somebody looks on, else `Silent`."""
    return OnTerminal() if sys.stderr.isatty() else Silent()


def round_line(rounds_done: int, rounds: int, metrics: Mapping[str, float]) -> str:
    """Reward, policy version, tokens, and seconds by phase."""
    parts = [f"round {rounds_done}/{rounds}", f"reward {_number(metrics.get('reward/mean'), '.3f')}"]
    if "trainer/policy_version" in metrics:
        parts.append(f"version {metrics['trainer/policy_version']:.0f}")
    parts.append(f"{metrics.get('trainer/tokens_trained', 0):,.0f} tokens")
    spent = [
        f"{phase} {metrics[f'seconds/{phase}']:.1f}"
        for phase in _PHASES
        if metrics.get(f"seconds/{phase}", 0) >= 0.05
    ]
    parts.append(f"{metrics.get('seconds/total', 0):.1f} s ({', '.join(spent)})")
    bad = {
        name: metrics.get(f"rollouts/{name}", 0)
        for name in ("failed", "truncated", "lost", "without_call", "other_model", "without_reward")
    }
    parts += [f"{many:.0f} {name.replace('_', ' ')}" for name, many in bad.items() if many]
    return "  ".join(parts)


def validation_line(rounds_done: int, metrics: Mapping[str, float], *, best: bool) -> str:
    """Held-out reward, by agent where there are several."""
    agents = {name: value for name, value in metrics.items() if name.startswith("reward/agent/")}
    line = f"validation after {rounds_done} rounds: reward {_number(metrics.get('reward/mean'), '.3f')}"
    if len(agents) > 1:
        by_agent = (f"{name.rpartition('/')[2]} {value:.3f}" for name, value in sorted(agents.items()))
        line += f" ({printable(', '.join(by_agent))})"
    return f"{line}, the best so far" if best else line


def printable(text: str) -> str:
    """One line that cannot act on a terminal: names come from agents and tasks."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
