"""Learning from batches of groups: advantages, rows, optimiser steps of each policy, new weights published."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from lightning_backends.torch_rl.aggregation import constant_length
from lightning_backends.torch_rl.checkpoint import restore_checkpoint, save_checkpoint
from lightning_backends.torch_rl.credit import Crediting
from lightning_backends.torch_rl.layout import Ids
from lightning_backends.torch_rl.metrics import Tally, drop_reasons, measure_advantages, measure_rows
from lightning_backends.torch_rl.options import Options
from lightning_backends.torch_rl.policy import TrainedPolicy
from lightning_backends.torch_rl.publishing import publish
from lightning_backends.torch_rl.samples import Sample, make_samples
from lightning_backends.torch_rl.update import Updater
from lightning_backends.torch_rl.weights import write_model
from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp import Group
from lightning_sdk.mdp.sequences import Row, build_rows
from lightning_sdk.plugins import Publisher, Report, TrainingRun

# They mean something in the patterns that select policies.
_PATTERN_SIGNS: Final = frozenset("*?[]|")


class Learner:
    """The policies of one run, and what is done to them.

    Every policy has a model and an optimiser of its own and its own version, which grows by one with each batch that
    it learned something from.
    """

    def __init__(self, run: TrainingRun, options: Options) -> None:
        """Load every policy.

        Raises:
            ConfigError: a model that cannot be trained with these options.
        """
        if run.publisher is None:
            raise ConfigError("torch_rl serves no policy itself: the run needs a publisher")
        for name in run.policies:
            if not name or _PATTERN_SIGNS & set(name):
                raise ConfigError(f"policy name {name!r} is empty or has one of *?[]|; give another")
        if options.loss == "dr_grpo":
            constant_length(options, run.max_tokens)
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        self._options = options
        self._run = run
        self._publisher: Publisher = run.publisher
        self._crediting = Crediting(options, max_tokens=run.max_tokens, max_age=run.max_age)
        torch.manual_seed(run.seed)
        self._generator = torch.Generator().manual_seed(run.seed)
        self._policies = {
            name: TrainedPolicy(name, directory, options) for name, directory in run.policies.items()
        }
        # The latest rows of each policy: a probe of what its weights compute.
        self._probed: dict[str, list[Ids]] = {}

    def consume(self, groups: Iterable[Group]) -> Report:
        """Learn from a batch of groups, and publish each policy that changed.

        Raises:
            PublishError: the endpoint does not take the weights.
        """
        tally = Tally()
        for name in ("tokens_trained", "rollouts_trained", "steps", "steps_skipped"):
            tally.add(name, 0)
        started = time.perf_counter()
        advantages, targets = self._crediting.advantages(list(groups), self._policies, tally)
        measure_advantages(advantages, tally)
        by_policy: dict[str, list[Row]] = defaultdict(list)
        for row in build_rows(advantages):
            by_policy[row.policy or ""].append(row)
        tally.last("seconds.assembly", time.perf_counter() - started)
        for name, rows in by_policy.items():
            self._learn(name, rows, targets, tally)
        tally.last("seconds.training", time.perf_counter() - started - tally.total("seconds.publishing"))
        for name, policy in self._policies.items():
            tally.last(f"policy_version.{name}", policy.version)
        return Report(
            metrics=tally.numbers(),
            dropped=drop_reasons(advantages),
            policy_version=max(policy.version for policy in self._policies.values()),
        )

    def save(self, directory: Path) -> None:
        """Write all that the next round depends on."""
        save_checkpoint(directory, self._policies, self._generator)

    def restore(self, directory: Path) -> None:
        """Go on from what `save` wrote, and publish it again.

        Raises:
            RunError: it is no checkpoint of this run.
            PublishError: the endpoint does not take the weights.
        """
        restore_checkpoint(directory, self._policies, self._generator)
        for policy in self._policies.values():
            self._publish(policy, policy.version)

    def export(self, directory: Path) -> Mapping[str, Path]:
        """Write each policy as a Hugging Face directory of its name."""
        written = {}
        for name, policy in self._policies.items():
            place = directory / name
            place.mkdir(parents=True, exist_ok=True)
            write_model(policy.model, place, self._options)
            written[name] = place
        return written

    def _learn(
        self, name: str, rows: Sequence[Row], targets: dict[tuple[str, int], float], tally: Tally
    ) -> None:
        """All steps of one policy on one batch, and what came out published."""
        policy = self._policies[name]
        own = Tally()
        measure_rows(rows, policy.version, own)
        self._probed[name] = [row.token_ids_T for row in rows[:2]]
        samples = make_samples(rows, targets)
        stepped = self._steps(policy, samples, own)
        tally.merge(own)
        if len(self._policies) > 1:
            for key, value in own.numbers().items():
                tally.last(f"{name}/{key}", value)
        if stepped:
            started = time.perf_counter()
            self._publish(policy, policy.version + 1)
            tally.add("seconds.publishing", time.perf_counter() - started)

    def _steps(self, policy: TrainedPolicy, samples: Sequence[Sample], tally: Tally) -> bool:
        options = self._options
        updater = Updater(policy, temperature=self._run.temperature, max_tokens=self._run.max_tokens)
        by_rollout: dict[int, list[Sample]] = defaultdict(list)
        for sample in samples:
            by_rollout[sample.rollout].append(sample)
        rollouts = list(by_rollout.values())
        size = options.rollouts_per_update or max(1, len(rollouts))
        single = options.epochs == 1 and len(rollouts) <= size
        updater.prepare(samples, old=not single)
        stepped = False
        for epoch in range(options.epochs):
            order = list(range(len(rollouts)))
            if len(rollouts) > size:
                order = torch.randperm(len(rollouts), generator=self._generator).tolist()
            for first in range(0, len(order), size):
                update = [sample for at in order[first : first + size] for sample in rollouts[at]]
                stepped = updater.step(update, tally, first=epoch == 0) or stepped
        return stepped

    def _publish(self, policy: TrainedPolicy, version: int) -> None:
        publish(
            policy,
            self._publisher,
            self._run.directory / "trainer" / "publish",
            version=version,
            rows=self._probed.get(policy.name, ()),
        )
