"""The runner: plans, retries, fences, gives up, pauses, and goes on after a restart."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from typing import ClassVar

import pytest

from lightning_sdk import testing
from lightning_sdk.errors import AgentError, ConfigError, RunError
from lightning_sdk.rollouts.job import Job, Outcome, Result
from lightning_sdk.rollouts.plan import FinishedGroup, RunOptions
from lightning_sdk.rollouts.retries import RetryRule
from lightning_sdk.rollouts.runner import Runner
from lightning_sdk.rollouts.tasks import load_tasks
from lightning_sdk.rollouts.workers.base import Workers
from lightning_sdk.rollouts.workers.coroutines import AsyncWorkers
from lightning_sdk.rollouts.workers.threads import ThreadWorkers
from support import rollout_agents
from support.waiting import wait_until

AGENTS = "support.rollout_agents"
AT_ONCE = RetryRule(max_attempts=3, on=("failed", "lost"), backoff_s=0.0)


class ScriptedWorkers(Workers):
    """Workers whose results come when, and as often as, the test says."""

    kind: ClassVar[str] = "scripted"
    no_timeout: ClassVar[str | None] = None

    def __init__(self, capacity: int = 8) -> None:
        self.capacity = capacity
        self.jobs: list[Job] = []
        self.cancelled: list[tuple[str, int]] = []
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()

    def start(self) -> None: ...

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def next_result(self, timeout_s: float | None) -> Result | None:
        try:
            return self._results.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def cancel(self, rollout_id: str, attempt: int) -> None:
        self.cancelled.append((rollout_id, attempt))
        self.end(
            next(job for job in self.jobs if (job.rollout_id, job.attempt) == (rollout_id, attempt)),
            "cancelled",
        )

    def close(self) -> None: ...

    def end(
        self, job: Job, outcome: Outcome = "succeeded", error: str | None = None, message: str = ""
    ) -> None:
        self._results.put(
            Result(
                rollout_id=job.rollout_id,
                attempt=job.attempt,
                outcome=outcome,
                error_type=error,
                error_message=message,
                start_ns=1,
                end_ns=2,
                end_written=True,
            )
        )

    def wait_for_jobs(self, count: int) -> list[Job]:
        wait_until(lambda: len(self.jobs) >= count)
        return self.jobs


def states(group: FinishedGroup | None) -> list[tuple[str, int]]:
    assert group is not None
    return [(each.outcome, each.attempts) for each in group.rollouts]


@pytest.mark.parametrize("name", ["plain", "traced", "generator", "own_loop", "coroutine"])
def test_threads_run_any_agent_into_rollouts_of_their_groups(name: str) -> None:
    with testing.capture() as captured:
        with Runner(ThreadWorkers(2), RunOptions(agent=f"{AGENTS}:{name}", project="p")) as runner:
            (group_id,) = runner.submit(load_tasks([{"id": "a"}]), 3, split="train", round=2)
            group = runner.wait_group()
            assert runner.wait_group() is None
        assert group is not None
        assert (group.group_id, group.round, group.split) == (group_id, 2, "train")
        assert states(group) == [("succeeded", 1)] * 3
    found = captured.episodes()
    assert {episode.rollout_id for episode in found} == {each.rollout_id for each in group.rollouts}
    assert {(each.group_id, each.task_id, each.split, each.return_) for each in found} == {
        (group_id, "a", "train", 1.0)
    }
    assert len({each.metadata["seed"] for each in found}) == 3


def test_coroutines_run_at_once_in_one_thread() -> None:
    with Runner(AsyncWorkers(20), RunOptions(agent=f"{AGENTS}:together")) as runner:
        runner.submit(load_tasks([{"present": 20}]), 20)
        assert states(runner.wait_group()) == [("succeeded", 1)] * 20


def test_a_timeout_cancels_a_coroutine_and_truncates_its_rollout() -> None:
    options = RunOptions(agent=f"{AGENTS}:sleeping", timeout_s=0.01)
    with testing.capture() as captured, Runner(AsyncWorkers(2), options) as runner:
        runner.submit(load_tasks([1]))
        assert states(runner.wait_group()) == [("truncated", 1)]
    (episode,) = captured.episodes()
    assert episode.outcome == "truncated"


def test_a_coroutine_that_does_not_let_itself_be_cancelled_is_left_with_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lightning_sdk.rollouts.execution.CANCEL_GRACE_S", 0.01)
    with Runner(AsyncWorkers(1), RunOptions(agent=f"{AGENTS}:stubborn", timeout_s=0.01)) as runner:
        runner.submit(load_tasks([1]))
        group = runner.wait_group()
        rollout_agents.released.append(1)
    assert group is not None
    assert group.rollouts[0].result is not None
    assert "went on all the same, and may still run" in (group.rollouts[0].result.error_message or "")
    assert not group.rollouts[0].result.end_written


def test_a_plain_function_is_refused_in_an_event_loop() -> None:
    with Runner(AsyncWorkers(1), RunOptions(agent=f"{AGENTS}:plain")) as runner:
        runner.submit(load_tasks([1]))
        group = runner.wait_group()
    assert group is not None
    assert group.rollouts[0].result is not None
    assert "is no coroutine function" in (group.rollouts[0].result.error_message or "")


def test_threads_refuse_a_timeout_with_the_reason() -> None:
    with pytest.raises(
        ConfigError, match="since a thread cannot be ended from outside: take the kind processes"
    ):
        Runner(ThreadWorkers(1), RunOptions(agent=f"{AGENTS}:plain", timeout_s=1))


def test_an_agent_that_is_not_there_ends_the_run_before_anything_is_recorded() -> None:
    with (
        testing.capture() as captured,
        Runner(ThreadWorkers(1), RunOptions(agent=f"{AGENTS}:nobody")) as runner,
    ):
        runner.submit(load_tasks([1, 2]))
        with pytest.raises(AgentError, match="has no 'nobody'"):
            runner.run()
    assert captured.episodes() == []


def test_a_task_without_an_agent_is_refused() -> None:
    with Runner(ThreadWorkers(1), RunOptions()) as runner, pytest.raises(ConfigError, match="names no agent"):
        runner.submit(load_tasks([1]))


def test_several_agents_share_a_run() -> None:
    rows = [{"id": "a", "agent": f"{AGENTS}:plain"}, {"id": "b"}]
    with (
        testing.capture() as captured,
        Runner(ThreadWorkers(1), RunOptions(agent=f"{AGENTS}:traced")) as runner,
    ):
        runner.submit(load_tasks(rows))
        runner.run()
    assert {each.task_id: bool(each.scopes) for each in captured.episodes()} == {"a": False, "b": True}


def test_what_the_rule_allows_is_tried_again(tmp_path: Path) -> None:
    task = {"file": str(tmp_path / "tries"), "tries": 3}
    options = RunOptions(
        agent=f"{AGENTS}:failing_first",
        retry=RetryRule(max_attempts=3, on=["ConnectionError"], backoff_s=0.0),
    )
    with testing.capture() as captured, Runner(ThreadWorkers(1), options) as runner:
        runner.submit(load_tasks([task]))
        assert states(runner.wait_group()) == [("succeeded", 3)]
        assert runner.summary().retries == 2
    (episode,) = captured.episodes()
    assert (episode.attempt, episode.outcome, episode.return_) == (3, "succeeded", 3.0)


def test_the_last_attempt_that_is_allowed_decides() -> None:
    workers = ScriptedWorkers()
    with Runner(workers, RunOptions(agent="a:b", retry=AT_ONCE)) as runner:
        runner.submit(load_tasks([1]))
        for attempt in (1, 2, 3):
            workers.end(workers.wait_for_jobs(attempt)[-1], "lost")
        assert states(runner.wait_group()) == [("lost", 3)]


def test_a_result_of_an_earlier_attempt_is_fenced_off() -> None:
    workers = ScriptedWorkers()
    with Runner(workers, RunOptions(agent="a:b", retry=AT_ONCE)) as runner:
        runner.submit(load_tasks([1]))
        first = workers.wait_for_jobs(1)[0]
        workers.end(first, "lost")
        second = workers.wait_for_jobs(2)[1]
        workers.end(first, "succeeded")
        workers.end(second, "failed", "ValueError")
        workers.wait_for_jobs(3)
        workers.end(workers.jobs[2], "succeeded")
        assert states(runner.wait_group()) == [("succeeded", 3)]
        workers.end(workers.jobs[2], "failed")
        assert runner.summary().late_results == 1


def test_a_run_is_given_up_with_the_commonest_error_once_enough_have_ended() -> None:
    workers = ScriptedWorkers(capacity=10)
    with Runner(workers, RunOptions(agent="a:b", max_failures=0.5, least_ended=6)) as runner:
        runner.submit(load_tasks(list(range(10))))
        jobs = workers.wait_for_jobs(10)
        for number, job in enumerate(jobs[:5]):
            workers.end(job, "failed", "mod.ValueError", "bad" if number else "other")
        workers.end(jobs[5])
        with pytest.raises(
            RunError,
            match=r"^5 of 6 rollouts ended badly, more than the share of 0\.5 .* is ValueError: bad \(4 times\)$",
        ):
            runner.run()
    assert len(workers.cancelled) == 4


def test_half_of_them_failing_is_not_more_than_half() -> None:
    workers = ScriptedWorkers()
    with Runner(workers, RunOptions(agent="a:b", max_failures=0.5, least_ended=2)) as runner:
        runner.submit(load_tasks([1, 2]))
        good, bad = workers.wait_for_jobs(2)
        workers.end(good)
        workers.end(bad, "failed", "ValueError")
        assert runner.run().states == {"succeeded": 1, "failed": 1}


def test_no_more_run_at_once_than_there_are_workers_and_none_starts_in_a_pause() -> None:
    workers = ScriptedWorkers(capacity=2)
    with Runner(workers, RunOptions(agent="a:b")) as runner:
        runner.submit(load_tasks([1, 2, 3, 4]))
        workers.wait_for_jobs(2)
        runner.pause()
        for job in list(workers.jobs):
            workers.end(job)
        assert runner.wait_drained(20)
        assert len(workers.jobs) == 2
        runner.resume()
        for job in workers.wait_for_jobs(4)[2:]:
            workers.end(job)
        assert runner.run().states == {"succeeded": 4}


def test_what_is_submitted_again_is_not_run_again_but_completed() -> None:
    workers = ScriptedWorkers()
    with Runner(workers, RunOptions(agent="a:b")) as runner:
        tasks = load_tasks([1])
        (first,) = runner.submit(tasks)
        workers.end(workers.wait_for_jobs(1)[0])
        assert states(runner.wait_group()) == [("succeeded", 1)]
        assert runner.submit(tasks, 2) == [first]
        workers.end(workers.wait_for_jobs(2)[1])
        assert states(runner.wait_group()) == [("succeeded", 1)] * 2
        assert runner.submit(tasks, 1, round=1) != [first]


def test_waiting_has_a_limit() -> None:
    with Runner(ScriptedWorkers(), RunOptions(agent="a:b")) as runner:
        runner.submit(load_tasks([1]))
        assert runner.wait_group(0.01) is None


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    workers = ScriptedWorkers(capacity=2)
    with Runner(workers, RunOptions(agent="a:b"), run_id="run_1", kept={"answer": 42}) as runner:
        runner.submit(load_tasks([1, 2, 3]), 1, split="train")
        first, second = workers.wait_for_jobs(2)[:2]
        workers.end(first)
        runner.wait_group()
        workers.wait_for_jobs(3)
    again = ScriptedWorkers()
    with Runner(again, RunOptions(agent="a:b"), run_id="run_1", resume=True) as runner:
        assert runner.restored.options["answer"] == 42
        assert runner.restore_all() == 2
        jobs = {job.rollout_id: job for job in again.wait_for_jobs(2)}
        assert first.rollout_id not in jobs
        assert jobs[second.rollout_id].attempt == 2
        assert jobs[second.rollout_id].seed == second.seed
        for job in jobs.values():
            again.end(job)
        assert runner.run().states == {"succeeded": 3}


def test_what_failed_is_run_again_on_demand_only() -> None:
    workers = ScriptedWorkers()
    with Runner(workers, RunOptions(agent="a:b"), run_id="run_1") as runner:
        runner.submit(load_tasks([1]))
        workers.end(workers.wait_for_jobs(1)[0], "failed", "ValueError")
        assert runner.run().states == {"failed": 1}
    with Runner(ScriptedWorkers(), RunOptions(agent="a:b"), run_id="run_1", resume=True) as runner:
        assert runner.restore_all() == 0
        assert runner.run().states == {"failed": 1}
    again = ScriptedWorkers()
    with Runner(again, RunOptions(agent="a:b"), run_id="run_1", resume=True) as runner:
        assert runner.restore_all(reopen_bad=True) == 1
        again.end(again.wait_for_jobs(1)[0])
        assert states(runner.wait_group()) == [("succeeded", 2)]


def test_a_journal_that_was_cut_short_by_a_crash_is_resumed() -> None:
    workers = ScriptedWorkers()
    with Runner(workers, RunOptions(agent="a:b"), run_id="run_1") as runner:
        runner.submit(load_tasks([1, 2]))
        workers.end(workers.wait_for_jobs(2)[0])
        runner.wait_group()
        journal = runner.directory / "journal.jsonl"
    # As if the machine had died while the first result was written.
    lines = journal.read_bytes().splitlines(keepends=True)
    ended = next(at for at, line in enumerate(lines) if b'"ended"' in line)
    journal.write_bytes(b"".join(lines[:ended]) + lines[ended][:40])
    again = ScriptedWorkers()
    with Runner(again, RunOptions(agent="a:b"), run_id="run_1", resume=True) as runner:
        assert runner.restore_all() == 2
        for job in again.wait_for_jobs(2):
            assert job.attempt == 2
            again.end(job)
        assert runner.run().states == {"succeeded": 2}
    assert sum(b'"ended"' in line for line in journal.read_bytes().splitlines()) == 3


def test_a_run_is_run_by_one_process_at_a_time_and_not_begun_twice() -> None:
    with Runner(ScriptedWorkers(), RunOptions(agent="a:b"), run_id="run_1") as runner:
        with pytest.raises(RunError, match="there is a run run_1 already"):
            Runner(ScriptedWorkers(), RunOptions(agent="a:b"), run_id="run_1")
        with pytest.raises(RunError, match="another process runs run_1"):
            Runner(ScriptedWorkers(), RunOptions(agent="a:b"), run_id="run_1", resume=True)
        assert runner.directory.stat().st_mode & 0o777 == 0o700
    with pytest.raises(RunError, match="there is no run run_2 to resume"):
        Runner(ScriptedWorkers(), RunOptions(agent="a:b"), run_id="run_2", resume=True)


@pytest.mark.parametrize("run_id", ["..", "a/b", "", "x" * 200, "a\nb"])
def test_a_run_id_names_a_directory_and_nothing_else(run_id: str) -> None:
    with pytest.raises(RunError, match="cannot name a directory"):
        Runner(ScriptedWorkers(), RunOptions(agent="a:b"), run_id=run_id or ".")


def test_the_journal_holds_no_token() -> None:
    workers = ScriptedWorkers()
    routing = {"policy_endpoint": "http://127.0.0.1:1/v1", "policy_token": "hush-hush"}
    with Runner(workers, RunOptions(agent="a:b", routing=routing)) as runner:
        runner.submit(load_tasks([1]))
        assert workers.wait_for_jobs(1)[0].routing == routing
        workers.end(workers.jobs[0])
        runner.run()
        text = (runner.directory / "journal.jsonl").read_text()
    assert "hush" not in text
    assert [json.loads(line)["type"] for line in text.splitlines()] == ["run", "group", "started", "ended"]
