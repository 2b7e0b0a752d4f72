"""What `lsdk run` shows: a line that grows while rollouts run, and a summary at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli import wording
from lightning_sdk.cli.console import notice, print_json
from lightning_sdk.cli.reading import Source, call_views, load
from lightning_sdk.cli.tokens import episode_tokens
from lightning_sdk.errors import LightningError
from lightning_sdk.rollouts.lifecycle import BAD, FINAL
from lightning_sdk.rollouts.plan import FinishedGroup
from lightning_sdk.rollouts.runner import Runner

_SHOW_EVERY_S: Final = 0.2
# Rewards and tokens are read from what is stored, which takes a while.
_READ_EVERY_S: Final = 3.0
_ROLLOUTS_A_READ: Final = 500


@dataclass(slots=True)
class _Sums:
    """Of what the store tells of rollouts."""

    rewarded: int = 0
    rewards: float = 0.0
    calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0

    def read(self, source: Source, query: RolloutQuery) -> None:
        """Add the rollouts of a query."""
        with source.reader() as reader:
            for loaded in load(reader, query):
                episode = loaded.episode
                prompt, response = episode_tokens(episode, call_views(loaded.records))
                self.calls += loaded.summary.calls
                self.prompt_tokens += prompt or 0
                self.response_tokens += response or 0
                if episode.return_ is not None:
                    self.rewarded += 1
                    self.rewards += episode.return_

    @property
    def mean_reward(self) -> float | None:
        """Of rollouts that have a reward."""
        return self.rewards / self.rewarded if self.rewarded else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, for the exit code and the last line."""

    rollouts: int
    bad: int
    # Not ended.
    open: int


class RunView:
    """Follows a run, on stderr where that is a terminal."""

    def __init__(self, runner: Runner, source: Source) -> None:
        self._runner = runner
        self._source = source
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._sums = _Sums()
        # Rollouts that have ended and were not read yet.
        self._unread: list[str] = []
        self._read_s = time.monotonic()
        # What it was last said to wait for.
        self._told: str | None = None

    def watch(self) -> None:
        """Wait until all rollouts have ended.

        Raises:
            RunError: the run was given up.
        """
        if not self._console.is_terminal:
            while self._runner.wait_group(_SHOW_EVERY_S) is not None or not self._runner.idle:
                self._tell_wait()
            return
        columns = (
            *(TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn()),
            *(TextColumn("{task.fields[facts]}"), TimeRemainingColumn()),
        )
        with Progress(*columns, console=self._console, transient=True) as bar:
            shown = bar.add_task("rollouts", total=None, facts="")
            while True:
                group = self._runner.wait_group(_SHOW_EVERY_S)
                self._update(bar, shown, () if group is None else (group,))
                if group is None and self._runner.idle:
                    return

    def _tell_wait(self) -> None:
        """Say once what the run waits for, and again when that is something else."""
        waits_for = self._runner.waits_for
        if waits_for is not None and waits_for != self._told:
            notice(waits_for)
        self._told = waits_for

    def finish(self, *, as_json: bool) -> Outcome:
        """Print the summary."""
        facts = self._facts()
        if as_json:
            print_json(facts)
        else:
            # One line each, whatever the terminal's width.
            sys.stdout.write("".join(f"{line}\n" for line in _lines(facts)))
        states = facts["states"]
        return Outcome(
            rollouts=sum(states.values()),
            bad=sum(count for state, count in states.items() if state in BAD),
            open=sum(count for state, count in states.items() if state not in FINAL),
        )

    def _update(self, bar: Progress, shown: TaskID, groups: Iterable[FinishedGroup]) -> None:
        for group in groups:
            self._unread += [each.rollout_id for each in group.rollouts]
        if self._unread and time.monotonic() - self._read_s > _READ_EVERY_S:
            self._read_ended()
        summary = self._runner.summary()
        states = summary.states
        ended = sum(count for state, count in states.items() if state in FINAL)
        bad = sum(count for state, count in states.items() if state in BAD)
        parts = [self._runner.waits_for or f"{states.get('running', 0)} running", f"{bad} bad" if bad else ""]
        parts += [f"{summary.retries} retried" if summary.retries else ""]
        if self._sums.mean_reward is not None:
            parts.append(f"reward {wording.number(self._sums.mean_reward)}")
        tokens = self._sums.prompt_tokens + self._sums.response_tokens
        parts += [f"{tokens:,} tokens" if tokens else "", f"{ended / max(summary.seconds, 1e-9):.2g}/s"]
        bar.update(shown, total=sum(states.values()), completed=ended, facts=" · ".join(filter(None, parts)))

    def _read_ended(self) -> None:
        ids, self._unread = self._unread[:_ROLLOUTS_A_READ], self._unread[_ROLLOUTS_A_READ:]
        try:
            self._sums.read(self._source, RolloutQuery(rollout_id_prefixes=ids))
        except LightningError:
            pass  # said at the end, if it is still so
        self._read_s = time.monotonic()

    def _facts(self) -> dict[str, Any]:
        summary = self._runner.summary()
        sums = _Sums()
        try:
            sums.read(self._source, RolloutQuery(run_id=summary.run_id))
        except LightningError as error:
            notice(f"rewards and tokens cannot be told: {error}")
        return {
            "run_id": summary.run_id,
            "states": dict(summary.states),
            "retries": summary.retries,
            "late_results": summary.late_results,
            "errors": dict(summary.errors),
            "seconds": round(summary.seconds, 3),
            "calls": sums.calls,
            "prompt_tokens": sums.prompt_tokens,
            "response_tokens": sums.response_tokens,
            "rewarded": sums.rewarded,
            "mean_reward": sums.mean_reward,
            "directory": str(self._runner.directory),
        }


def _lines(facts: dict[str, Any]) -> list[str]:
    states, seconds = facts["states"], facts["seconds"]
    rollouts = sum(states.values())
    took = wording.duration(0, int(seconds * 1e9))
    line = f"{wording.count(rollouts, 'rollout')} in {took}: {wording.tally(states) or 'nothing to run'}"
    if facts["retries"]:
        line += f"; {wording.count(facts['retries'], 'attempt')} more"
    if facts["mean_reward"] is not None:
        rewarded = "" if facts["rewarded"] == rollouts else f" (of {facts['rewarded']:,})"
        line += f"; mean reward {wording.number(facts['mean_reward'])}{rewarded}"
    if facts["calls"]:
        tokens = facts["prompt_tokens"] + facts["response_tokens"]
        line += f"; {wording.count(facts['calls'], 'call')}" + (f", {tokens:,} tokens" if tokens else "")
    lines = [wording.one_line(f"run {facts['run_id']}: {line}")]
    lines += [
        f"  {wording.one_line(sentence)} ({wording.count(count, 'time')})"
        for sentence, count in facts["errors"].items()
    ]
    return lines
