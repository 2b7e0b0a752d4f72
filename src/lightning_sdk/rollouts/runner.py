"""The runner: plans rollouts, gives them to workers, and keeps the journal of what becomes of each."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from lightning_sdk.client.config import load_config
from lightning_sdk.errors import AgentError, ConfigError, LightningError, RunError
from lightning_sdk.home import StrPath
from lightning_sdk.ids import new_id
from lightning_sdk.rollouts.agents import AGENT_ERROR
from lightning_sdk.rollouts.ends import EndWriter
from lightning_sdk.rollouts.failures import Failures
from lightning_sdk.rollouts.job import Job, Result, ended_outside
from lightning_sdk.rollouts.journal import run_directory
from lightning_sdk.rollouts.lifecycle import BAD, EVENT_OF, Event, Life, advance
from lightning_sdk.rollouts.lineup import Lineup
from lightning_sdk.rollouts.plan import (
    FinishedGroup,
    PlannedGroup,
    PlannedRollout,
    RunOptions,
    RunSummary,
    extend_group,
    finished_group,
    job_of,
    plan_group,
)
from lightning_sdk.rollouts.restore import open_run
from lightning_sdk.rollouts.tasks import Task
from lightning_sdk.rollouts.workers.base import Workers

# How often the runner looks for something new to do while workers are busy.
_LOOK_EVERY_S: Final = 0.05
# How long cancelled attempts have to come back before they are given up.
_STOP_TIMEOUT_S: Final = 10.0


class Runner:
    """Runs rollouts on workers. Thread-safe; the work is done by a thread of its own, which starts with the first
    `submit`.

    Rollout ids are made of run, split, task, round and index: what is submitted again is not run again. After a
    restart, `Runner(…, run_id=…, resume=True)` knows what the journal tells; `submit` then gives finished groups at
    once, and goes on with the others, and `restored` says what there was.
    """

    def __init__(
        self,
        workers: Workers,
        options: RunOptions,
        *,
        run_id: str | None = None,
        resume: bool = False,
        home: StrPath | None = None,
        endpoint: str | None = None,
        token: str | None = None,
        kept: Mapping[str, Any] | None = None,
        on_result: Callable[[Result, Life], None] | None = None,
    ) -> None:
        """Open the run's journal and start the workers.

        Args:
            workers: where rollouts run; not started yet. `close` closes them.
            options: what all rollouts have in common.
            run_id: default: a fresh one.
            resume: the run was begun before.
            home: the state directory. Default: as for `lightning_sdk.init`, as are the next two.
            endpoint: of the collector, for the ends of attempts that were killed.
            token: the collector's.
            kept: JSON to keep in the journal for whoever resumes the run. No secrets.
            on_result: called for each attempt that has ended, with the rollout's life after it, by the runner's
                thread.

        Raises:
            ConfigError: the workers cannot do what the options ask.
            RunError: the run is there already, is not there to be resumed, or is run by another process.
        """
        if options.timeout_s is not None and workers.no_timeout is not None:
            raise ConfigError(
                f"a timeout cannot be kept by the kind {workers.kind}, since {workers.no_timeout}: "
                "take the kind processes"
            )
        config = load_config(home=home, endpoint=endpoint, token=token)
        self.run_id = run_id or new_id("run")
        self.directory: Path = run_directory(config.home, self.run_id)
        facts = {"project": options.project, "seed": options.seed, "agent": options.agent}
        self._journal, self.restored = open_run(
            config.home, self.run_id, {**facts, **(kept or {})}, resume=resume
        )
        self.options = options
        self._workers = workers
        self._on_result = on_result
        self._ends = EndWriter(config)
        self._changed = threading.Condition()
        self._groups: dict[str, PlannedGroup] = {}
        self._queue = Lineup()
        self._waiting: list[tuple[float, int, PlannedRollout]] = []
        self._running: dict[str, tuple[PlannedRollout, Job]] = {}
        self._finished: deque[FinishedGroup] = deque()
        self._serial = itertools.count()
        self._states: Counter[str] = Counter()
        self._failures = Failures()
        self._ran_agents: set[str] = set()
        self._retries = 0
        self._late = 0
        self._paused = False
        self._stopping = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._began_s = time.monotonic()
        try:
            workers.start()
        except BaseException:
            self._journal.close()
            raise

    # -- what callers do ---------------------------------------------------------------------------------------

    def submit(
        self, tasks: Iterable[Task], n: int = 1, *, round: int = 0, split: str | None = None
    ) -> Sequence[str]:
        """Have each task run `n` times; returns the ids of their groups. Does not wait.

        A group that was submitted before gets what it lacks, and is given by `wait_group` again.

        Raises:
            ConfigError: a task has no agent, and neither has the run.
            RunError: the run has been given up or closed.
        """
        groups = []
        with self._changed:
            self._raise_if_over()
            for task in tasks:
                if task.agent is None and self.options.agent is None:
                    raise ConfigError(
                        f"task {task.task_id!r} names no agent, and the run has none: give module:function"
                    )
                groups.append(self._add_group(task, n, round, split))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="lightning-runner", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return [group.group_id for group in groups]

    def wait_group(self, timeout_s: float | None = None) -> FinishedGroup | None:
        """The next group whose rollouts have all ended; None when the time is up, or nothing is left to wait for.

        Raises:
            AgentError: an agent cannot be imported.
            RunError: the run was given up: too many rollouts ended badly, or no worker is left.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._finished or self._error is not None or self._stopping or self._idle(), timeout_s
            )
            if self._finished:
                return self._finished.popleft()
            self._raise_if_failed()
            return None

    def run(self, on_group: Callable[[FinishedGroup], None] | None = None) -> RunSummary:
        """Wait until all that was submitted has ended.

        Raises:
            RunError: as `wait_group`.
        """
        while (group := self.wait_group()) is not None:
            if on_group is not None:
                on_group(group)
        return self.summary()

    def pause(self) -> None:
        """Start no more rollouts; those that run go on."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        """Start rollouts again."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def wait_drained(self, timeout_s: float | None = None) -> bool:
        """Wait until no rollout runs (after `pause`). False: the time was up first."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._running or self._error is not None, timeout_s
            ) and not bool(self._running)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to wait for."""
        with self._changed:
            return self._idle() and not self._finished

    @property
    def waits_for(self) -> str | None:
        """What has to happen before rollouts can run, for whoever looks on; None: nothing."""
        with self._changed:
            agents = set(self._queue.agents)
        return self._workers.waits_for(agents)

    def summary(self) -> RunSummary:
        """How far the run has come."""
        with self._changed:
            return RunSummary(
                self.run_id,
                {state: count for state, count in self._states.items() if count},
                self._retries,
                self._late,
                dict(self._failures.errors.most_common(5)),
                time.monotonic() - self._began_s,
            )

    def stop(self, reason: str = "stopped") -> None:
        """Cancel what runs, and record its end; what has not run stays to be resumed. Idempotent."""
        with self._changed:
            if self._stopping or self._thread is None:
                self._stopping = True
                return
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._journal.write("stopped", reason=reason)

    def settle(self) -> None:
        """Stop, and let workers flush and end, so that all that was recorded can be read. Idempotent."""
        self.stop()
        self._workers.close()
        self._ends.close()

    def close(self) -> None:
        """Stop, and let go of workers and journal. Idempotent."""
        self.settle()
        self._journal.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- the plan ----------------------------------------------------------------------------------------------

    def _add_group(self, task: Task, n: int, round: int, split: str | None) -> PlannedGroup:
        planned = plan_group(self.run_id, task, n, round, split)
        group = self._groups.get(planned.group_id)
        if group is None:
            group = self.restored.groups.pop(planned.group_id, None)
            if group is not None:
                # What was resumed may have another agent now; else the journal's task is this one.
                group.task = task
                self._take_over(group)
        new = planned.rollouts if group is None else extend_group(group, n)
        if group is None:
            group = planned
        self._groups[group.group_id] = group
        if new:
            self._journal.write(
                "group",
                group_id=group.group_id,
                round=round,
                split=split,
                n=len(group.rollouts),
                task=orjson.Fragment(orjson.dumps(task)),
            )
            self._states["queued"] += len(new)
            for rollout in new:
                self._line_up(rollout)
        if group.finished:
            self._finished.append(finished_group(group))
        return group

    def _take_over(self, group: PlannedGroup) -> None:
        for rollout in group.rollouts:
            self._states[rollout.life.state] += 1
            if rollout.life.state == "queued":
                self._line_up(rollout)

    def restore_all(self, *, reopen_bad: bool = False) -> int:
        """Go on with everything that the journal tells of; returns how many rollouts are still to be run.

        Args:
            reopen_bad: also run again what failed, was truncated, cancelled or lost.
        """
        groups = list(self.restored.groups.values())
        with self._changed:
            for group in groups:
                for rollout in group.rollouts if reopen_bad else ():
                    if rollout.life.state in BAD or rollout.life.state == "cancelled":
                        self._journal.write("reopened", rollout_id=rollout.rollout_id)
                        rollout.life = _advanced(rollout.life, "reopen")
                        group.ended -= 1
        for group in groups:
            self.submit([group.task], len(group.rollouts), round=group.round, split=group.split)
        with self._changed:
            return len(self._queue) + len(self._running) + len(self._waiting)

    # -- the runner's thread -----------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._stopping:
                self._admit()
                result = self._next_result()
                if result is not None:
                    self._take(result)
        except BaseException as error:  # told to whoever waits
            self._fail(error)
        try:
            self._break_off()
        except LightningError as error:
            self._fail(error)

    def _admit(self) -> None:
        with self._changed:
            while not self._paused and not self._stopping and len(self._running) < self._workers.capacity:
                rollout = self._next_due()
                if rollout is None:
                    return
                self._retries += rollout.life.used > 0
                self._move(rollout, _advanced(rollout.life, "start"))
                job = job_of(rollout, self.run_id, self.options)
                self._journal.write("started", rollout_id=job.rollout_id, attempt=job.attempt)
                self._running[rollout.rollout_id] = (rollout, job)
                self._workers.submit(job)

    def _next_due(self) -> PlannedRollout | None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            self._line_up(heapq.heappop(self._waiting)[2], first=True)
        return self._queue.pop(self._workers.takes)

    def _line_up(self, rollout: PlannedRollout, *, first: bool = False) -> None:
        agent = rollout.group.task.agent or self.options.agent
        assert agent is not None, "submit refuses tasks without an agent"
        self._queue.append(agent, rollout, first=first)

    def _next_result(self) -> Result | None:
        """Wait for a result, or for something else to do."""
        with self._changed:
            if not self._running:
                pause_s = self._waiting[0][0] - time.monotonic() if self._waiting else None
                due = not self._paused and (bool(self._queue) or (pause_s is not None and pause_s <= 0))
                if not due:
                    if not self._stopping:
                        self._changed.wait(pause_s)
                    return None
        # Also where no worker takes what is due: some may come, or say why none will.
        return self._workers.next_result(_LOOK_EVERY_S)

    def _take(self, result: Result) -> None:
        with self._changed:
            rollout, job = self._running.get(result.rollout_id, (None, None))
            if rollout is None or job is None or advance(rollout.life, "cancel", result.attempt) is None:
                self._late += 1
                return
            if result.error_type == AGENT_ERROR and job.agent not in self._ran_agents:
                # Nothing has run: it is as if this had not been tried.
                self._take_last(replace(result, outcome="cancelled", end_written=True))
                raise AgentError(result.error_message or f"the agent {job.agent} cannot be imported")
            self._ran_agents.add(job.agent)
            del self._running[result.rollout_id]
            self._ends.write(job, result)
            event: Event = EVENT_OF[result.outcome]
            if self.options.retry.allows(result, rollout.life.used):
                event = "retry"
            self._end_attempt(rollout, result, event)
            if rollout.group.finished:
                self._ends.flush()
                self._finished.append(finished_group(rollout.group))
            self._changed.notify_all()
        if self._on_result is not None:
            self._on_result(result, rollout.life)
        if self._failures.too_many(self.options.max_failures, self.options.least_ended):
            raise RunError(self._why_given_up())

    def _end_attempt(self, rollout: PlannedRollout, result: Result, event: Event) -> None:
        life = _advanced(rollout.life, event)
        self._journal.write("ended", state=life.state, result=orjson.Fragment(result.to_json()))
        self._move(rollout, life)
        if life.state == "waiting":
            rollout.due_s = time.monotonic() + self.options.retry.delay_s(rollout.rollout_id, life.used)
            heapq.heappush(self._waiting, (rollout.due_s, next(self._serial), rollout))
        elif life.ended:
            rollout.result = result
            rollout.group.ended += 1
            self._failures.add(life.state, result)

    def _break_off(self) -> None:
        """Cancel what runs, and wait a while for it to come back."""
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        with self._changed:
            jobs = [job for _, job in self._running.values()]
        for job in jobs:
            self._workers.cancel(job.rollout_id, job.attempt)
        while self._running and (left_s := deadline - time.monotonic()) > 0:
            result = self._workers.next_result(min(left_s, _LOOK_EVERY_S))
            if result is not None:
                self._take_last(result)
        with self._changed:
            for rollout, job in list(self._running.values()):
                self._take_last(
                    ended_outside(
                        job, "cancelled", "lightning_sdk.errors.RunError", "the run was stopped", worker=""
                    )
                )
                assert rollout.life.state == "queued"
            self._ends.flush()
            self._changed.notify_all()

    def _take_last(self, result: Result) -> None:
        """As `_take`, when the run is being stopped: what was cancelled runs again when the run is resumed."""
        with self._changed:
            rollout, job = self._running.get(result.rollout_id, (None, None))
            if rollout is None or job is None or job.attempt != result.attempt:
                self._late += 1
                return
            del self._running[result.rollout_id]
            self._ends.write(job, result)
            interrupted = result.outcome in ("cancelled", "lost")
            self._end_attempt(rollout, result, "interrupt" if interrupted else EVENT_OF[result.outcome])
            if rollout.group.finished:
                self._finished.append(finished_group(rollout.group))

    def _move(self, rollout: PlannedRollout, life: Life) -> None:
        self._states[rollout.life.state] -= 1
        self._states[life.state] += 1
        rollout.life = life

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _why_given_up(self) -> str:
        failures, share = self._failures, self.options.max_failures
        return (
            f"{failures.bad} of {failures.ended} rollouts ended badly, more than the share of {share:g} that is "
            f"allowed; the commonest error is {failures.commonest()}"
        )

    def _idle(self) -> bool:
        return not (self._queue or self._waiting or self._running)

    def _raise_if_failed(self) -> None:
        if isinstance(self._error, LightningError):
            raise self._error
        if self._error is not None:
            raise RunError(f"the run broke off: {type(self._error).__name__}: {self._error}") from self._error

    def _raise_if_over(self) -> None:
        self._raise_if_failed()
        if self._stopping:
            raise RunError(f"the run {self.run_id} was stopped: resume it with a new runner")


def _advanced(life: Life, event: Event) -> Life:
    following = advance(life, event)
    assert following is not None
    return following
