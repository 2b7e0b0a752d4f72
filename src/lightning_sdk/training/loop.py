"""The loop: tasks, rollouts, episodes, trainer, new policy version, next tasks. Read `Loop.run` first.

Synchronous and asynchronous are one thing. The tasks of round k are admitted when `k - max_age` rounds are done, and
a round is trained on its own tasks and no others; so the policy that starts a rollout is at most `max_age` updates
older than the one that learns from it, however long the rollout takes, and nothing has to be dropped for its age.
With `max_age` 0 sampling and training take turns; with more, the next rounds' rollouts run while the trainer works.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from lightning_sdk.errors import LightningError
from lightning_sdk.mdp import Group
from lightning_sdk.plugins import TRAINING_SPLIT, VALIDATION_AS_TRAINED_SPLIT, Report, Trainer
from lightning_sdk.rollouts.plan import FinishedGroup
from lightning_sdk.rollouts.runner import Runner
from lightning_sdk.rollouts.tasks import Task
from lightning_sdk.training import metrics as measured
from lightning_sdk.training.batches import Batches
from lightning_sdk.training.episodes import Arrived, EpisodeSource
from lightning_sdk.training.interrupts import Interrupted, Interrupts
from lightning_sdk.training.metrics import Metrics
from lightning_sdk.training.progress import Progress
from lightning_sdk.training.samples import write_samples
from lightning_sdk.training.settings import Settings
from lightning_sdk.training.sinks import Sinks
from lightning_sdk.training.stack import Stack
from lightning_sdk.training.state import RunDirectory, RunState
from lightning_sdk.training.stopping import StopReason

# By `validation.sampling`.
VALIDATION_SPLITS: Final = {"agent": "validation", "training": VALIDATION_AS_TRAINED_SPLIT}
_LOOK_EVERY_S: Final = 0.2

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop drives; all of it is open, and stays its owner's."""

    trainer: Trainer
    runner: Runner
    source: EpisodeSource
    stack: Stack
    batches: Batches
    held_out: Sequence[Task]
    sinks: Sinks
    progress: Progress
    interrupts: Interrupts


class Loop:
    """Runs rounds until something says stop. `state` is true after each round."""

    def __init__(self, settings: Settings, directory: RunDirectory, parts: Parts, state: RunState) -> None:
        self.state = state
        self._settings = settings
        self._directory = directory
        self._parts = parts
        # By round: group ids that were admitted, in the order of its tasks; and groups that have ended, by id.
        self._admitted: dict[int, Sequence[str]] = {}
        self._ended: dict[str, FinishedGroup] = {}
        # What rollouts were last said to wait for.
        self._told_wait: str | None = None
        self._seconds: Counter[str] = Counter()
        self._saved_at: int | None = state.rounds_done if state.rounds_done else None
        self._is_training = False

    def run(self) -> StopReason:
        """Go on from the state.

        Returns:
            Why it ended. A checkpoint was saved.

        Raises:
            LightningError: it cannot go on. A checkpoint was saved, unless the trainer itself failed.
        """
        learning, validation = self._settings.learning, self._settings.validation
        state = self.state
        try:
            while True:
                if self._validation_is_due():
                    self._validate()
                reason = state.stopping.reason(state.rounds_done, learning, validation)
                if reason is not None:
                    break
                self._admit()
                finished, arrived = self._await_round()
                report = self._train(arrived.groups)
                self._finish_round(finished, arrived, report)
                if state.rounds_done % self._settings.run.checkpoint_every == 0:
                    self._save()
        except Interrupted:
            reason = "interrupted"
        except LightningError:
            if not self._is_training:
                self._save()
            raise
        self._save()
        return reason

    # -- rollouts ------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start the rollouts of this round, and of those that may run ahead."""
        learning = self._settings.learning
        last = min(self.state.rounds_done + learning.max_age, learning.rounds - 1)
        for round_ in range(self.state.rounds_done, last + 1):
            if round_ not in self._admitted:
                self._admitted[round_] = self._parts.runner.submit(
                    self._parts.batches.of_round(round_),
                    learning.rollouts_per_task,
                    round=round_,
                    split=TRAINING_SPLIT,
                )

    def _await_round(self) -> tuple[list[FinishedGroup], Arrived]:
        """The groups of this round, once all of their rollouts have ended and arrived."""
        group_ids = self._admitted.pop(self.state.rounds_done)
        with self._phase("rollouts"):
            finished = self._await_groups(group_ids)
        with self._phase("assembly"):
            return finished, self._parts.source.read(finished)

    def _await_groups(self, group_ids: Sequence[str]) -> list[FinishedGroup]:
        while not all(group_id in self._ended for group_id in group_ids):
            self._parts.interrupts.check()
            self._parts.stack.check()
            group = self._parts.runner.wait_group(_LOOK_EVERY_S)
            if group is not None:
                self._ended[group.group_id] = group
            self._tell_wait()
        return [self._ended.pop(group_id) for group_id in group_ids]

    def _tell_wait(self) -> None:
        """Say once what rollouts wait for, such as remote workers, and again when that is something else."""
        waits_for = self._parts.runner.waits_for
        if waits_for is not None and waits_for != self._told_wait:
            # Also where nobody looks on: the run does not go on by itself.
            _log.warning("%s", waits_for)
        self._told_wait = waits_for

    # -- training ------------------------------------------------------------------------------------------------

    def _train(self, groups: Sequence[Group]) -> Report:
        before_s = self._parts.stack.seconds_published
        self._is_training = True
        with self._phase("training"):
            report = self._parts.trainer.consume(groups)
        self._is_training = False
        published_s = self._parts.stack.seconds_published - before_s
        self._seconds["publishing"] += published_s  # type: ignore[assignment]
        self._seconds["training"] -= published_s  # type: ignore[assignment]
        return report

    def _finish_round(self, finished: Sequence[FinishedGroup], arrived: Arrived, report: Report) -> None:
        state, policies = self.state, self._settings.policies
        # Ages are those at the training: before this round's version.
        ages = measured.age_metrics(arrived.groups, state.versions, self._settings.learning.max_age)
        round_metrics: Metrics = {
            **measured.reward_metrics(arrived.groups),
            **measured.group_metrics(arrived.groups),
            **measured.rollout_metrics(arrived.groups, policies),
            **measured.error_metrics(finished),
            "rollouts/lost": arrived.lost,
            **ages,
            **measured.report_metrics(report),
        }
        state.rounds_done += 1
        state.versions = self._versions(report)
        idle_for = {
            name.partition("/")[2]: value
            for name, value in round_metrics.items()
            if name.startswith(("dropped/", "errors/")) or (value and name in measured.BAD_ROLLOUTS)
        }
        state.stopping.trained(report.metrics.get("tokens_trained", 0.0), idle_for)
        round_metrics.update(self._seconds_of_round())
        round_metrics["services/restarts"] = self._parts.stack.restarts
        self._parts.sinks.write("round", state.rounds_done, round_metrics)
        self._parts.progress.round_done(state.rounds_done, self._settings.learning.rounds, round_metrics)
        if (
            self._settings.report.samples
            and (state.rounds_done - 1) % self._settings.report.samples_every == 0
        ):
            write_samples(
                self._directory.samples, state.rounds_done, arrived.groups, self._settings.report.samples
            )
        self._directory.tell(state, "running")

    def _versions(self, report: Report) -> dict[str, int]:
        """What is served now: as published through us, else as the trainer tells."""
        published = self._parts.stack.versions
        if published or report.policy_version is None:
            return {**self.state.versions, **published}
        return dict.fromkeys(self._settings.policies, report.policy_version)

    # -- validation ----------------------------------------------------------------------------------------------

    def _validation_is_due(self) -> bool:
        done = self.state.rounds_done
        if not self._parts.held_out or self.state.validated_at == done:
            return False
        return done % self._settings.validation.every == 0 or done == self._settings.learning.rounds

    def _validate(self) -> None:
        """Mean reward on the held-out tasks, with the policy as it is now."""
        validation, state = self._settings.validation, self.state
        with self._phase("validation"):
            finished = self._await_groups(
                self._parts.runner.submit(
                    self._parts.held_out,
                    validation.rollouts_per_task,
                    round=state.rounds_done,
                    split=VALIDATION_SPLITS[validation.sampling],
                )
            )
            arrived = self._parts.source.read(finished)
        found = {
            **measured.reward_metrics(arrived.groups),
            **measured.rollout_metrics(arrived.groups, self._settings.policies),
            "rollouts/lost": arrived.lost,
        }
        best = state.stopping.validated(state.rounds_done, found.get("reward/mean"))
        state.validated_at = state.rounds_done
        if best and validation.keep_best:
            with self._phase("saving"):
                self._directory.replace("best", self._parts.trainer.export)
        self._parts.sinks.write("validation", state.rounds_done, found)
        self._parts.progress.validated(state.rounds_done, found, best=best)

    # -- the rest ------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """A checkpoint of the state as it is, where the latest is another."""
        if self._saved_at == self.state.rounds_done:
            return
        with self._phase("saving"):
            self._parts.trainer.save(self._directory.begin_checkpoint())
            self._directory.finish_checkpoint(self.state, keep=self._settings.run.keep_checkpoints)
        self._saved_at = self.state.rounds_done

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self._parts.progress.doing(name)
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - began_s  # type: ignore[assignment]

    def _seconds_of_round(self) -> Metrics:
        """Seconds and shares by phase since the round before."""
        total = sum(self._seconds.values()) or 1e-9
        spent = {f"seconds/{name}": float(each) for name, each in self._seconds.items()}
        shares = {f"share/{name}": each / total for name, each in self._seconds.items()}
        self._seconds.clear()
        return {**spent, **shares, "seconds/total": total}
