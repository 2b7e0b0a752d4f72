"""Remote workers over a real collector: who gets which job, and what a late or strange answer does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from lightning_sdk._proto.work_pb2 import FromRunner, FromWorker, Heartbeat, LeasedJob, RunnerHello, Wanted
from lightning_sdk.collector.store.home import open_home_store
from lightning_sdk.collector.work_peers import MAX_JOB_BYTES, Timing
from lightning_sdk.errors import CollectorError, ConfigError
from lightning_sdk.home import Home
from lightning_sdk.rollouts.job import Job, Result
from lightning_sdk.rollouts.plan import RunOptions
from lightning_sdk.rollouts.remote_worker import RemoteWorker
from lightning_sdk.rollouts.retries import RetryRule
from lightning_sdk.rollouts.runner import Runner
from lightning_sdk.rollouts.tasks import Task, load_tasks
from lightning_sdk.rollouts.workers.kinds import make_workers
from lightning_sdk.rollouts.workers.remote import RemoteWorkers
from support.collectors import collector_thread
from support.waiting import wait_until
from support.work_peer import Peer, held, raw_result, result_of, worker_by_hand

AGENTS = "support.rollout_agents"
TESTS = str(Path(__file__).parents[1])
AT_ONCE = RetryRule(max_attempts=3, on=("lost",), backoff_s=0.0)
HOUR = Timing(3600.0)

Listen = Callable[..., str]


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Listen]:
    """Starts a collector; returns its "host:port"."""
    with ExitStack() as exits:

        def start(timing: Timing = HOUR, **options: object) -> str:
            home = Home.locate(tmp_path / "collector")
            home.ensure()
            store = open_home_store(home)
            exits.callback(store.close)
            return exits.enter_context(collector_thread(store, timing=timing, **options))

        yield start


@contextmanager
def remote_worker(target: str, *names: str, slots: int = 1) -> Iterator[RemoteWorker]:
    """A real worker, with processes."""
    worker = RemoteWorker(
        [f"{AGENTS}:{name}" for name in names],
        f"grpc://{target}",
        slots=slots,
        environment={"PYTHONPATH": TESTS, "LIGHTNING_ENDPOINT": f"grpc://{target}"},
    )
    worker.start()
    try:
        yield worker
    finally:
        worker.close()


def runner_on(target: str, agent: str = "m:a", **options: object) -> Runner:
    workers = RemoteWorkers(f"grpc://{target}")
    return Runner(workers, RunOptions(agent=agent, retry=AT_ONCE, **options))  # type: ignore[arg-type]


def outcome_of(runner: Runner) -> tuple[str, int]:
    group = runner.wait_group(60)
    assert group is not None
    (rollout,) = group.rollouts
    return rollout.outcome, rollout.attempts


def test_workers_with_different_agents_get_their_own_jobs_and_nobody_waits_for_the_other(
    listen: Listen,
) -> None:
    target = listen()
    rows = [
        {"id": f"{name}{n}", "agent": f"{AGENTS}:{name}"} for name in ("plain", "coroutine") for n in "12"
    ]
    with runner_on(target) as runner:
        runner.submit(load_tasks(rows))
        assert runner.waits_for == (
            f"waiting for workers: lsdk work --agent {AGENTS}:coroutine --agent {AGENTS}:plain "
            f"--endpoint grpc://{target}"
        )
        with remote_worker(target, "coroutine") as second:
            ended = [runner.wait_group(60), runner.wait_group(60)]
            assert {group.task.task_id for group in ended if group} == {"coroutine1", "coroutine2"}
            assert runner.waits_for == (
                f"waiting for workers: lsdk work --agent {AGENTS}:plain --endpoint grpc://{target}"
            )
            with remote_worker(target, "plain", "traced") as first:
                summary = runner.run()
                assert (first.done, second.done) == (2, 2)
    assert summary.states == {"succeeded": 4}
    assert summary.retries == 0


def test_a_timeout_ends_an_agent_that_hangs_in_a_remote_process(listen: Listen) -> None:
    target = listen()
    with (
        remote_worker(target, "hanging_in_c", slots=2),
        runner_on(target, f"{AGENTS}:hanging_in_c", timeout_s=1.0) as runner,
    ):
        runner.submit(load_tasks([1]))
        assert outcome_of(runner) == ("truncated", 1)


def test_a_stopped_run_ends_what_runs_remotely_and_the_worker_goes_on(listen: Listen, tmp_path: Path) -> None:
    target, until = listen(), tmp_path / "until"
    with remote_worker(target, "waiting") as worker:
        with runner_on(target, f"{AGENTS}:waiting") as runner:
            runner.submit(load_tasks([{"until": str(until)}]))
            wait_until(lambda: worker.running)
            runner.stop()
            assert runner.summary().states == {"queued": 1}
        until.touch()
        with runner_on(target, f"{AGENTS}:waiting") as runner:
            runner.submit(load_tasks([{"until": str(until)}]))
            assert outcome_of(runner) == ("succeeded", 1)


def test_a_draining_worker_finishes_what_runs_and_takes_no_more(listen: Listen, tmp_path: Path) -> None:
    target, until = listen(), tmp_path / "until"
    with (
        remote_worker(target, "waiting") as worker,
        runner_on(target, f"{AGENTS}:waiting") as runner,
    ):
        runner.submit(load_tasks([{"until": str(until), "id": n} for n in "12"]))
        wait_until(lambda: worker.running)
        worker.drain()
        wait_until(lambda: runner.waits_for)
        until.touch()
        assert worker.wait_drained(60)
        assert worker.wait_settled(60)
        assert outcome_of(runner) == ("succeeded", 1)
        assert worker.done == 1
        with remote_worker(target, "waiting"):
            assert outcome_of(runner) == ("succeeded", 1)


def test_a_worker_that_is_ended_at_once_loses_what_runs_and_another_one_tries_it_again(
    listen: Listen, tmp_path: Path
) -> None:
    target, until = listen(), tmp_path / "until"
    with runner_on(target, f"{AGENTS}:waiting") as runner:
        runner.submit(load_tasks([{"until": str(until)}]))
        with remote_worker(target, "waiting") as worker:
            wait_until(lambda: worker.running)
        wait_until(lambda: runner.summary().states == {"waiting": 1} or runner.summary().retries == 1)
        until.touch()
        with remote_worker(target, "waiting"):
            assert outcome_of(runner) == ("succeeded", 2)


def test_a_late_result_of_an_old_lease_does_not_complete_the_next_attempt(listen: Listen) -> None:
    target = listen(Timing(2.5))
    with runner_on(target) as runner:
        first = worker_by_hand(target, "m:a", worker="first")
        runner.submit(load_tasks([1]))
        old = first.next("job")
        first.end()
        wait_until(lambda: runner.summary().retries == 0 and runner.summary().states == {"running": 1})
        second = worker_by_hand(target, "m:a", worker="second")
        new = next_job(second)
        assert (new.rollout_id, new.attempt) == (old.rollout_id, 2)
        # The first one comes back with a result, as one that had only lost its network does.
        back = worker_by_hand(target, "m:a", worker="first", slots=1, held=[held(old, ended=True)])
        back.say(result_of(old, worker="first"))
        assert back.next("settled") == old.lease
        # And under the new attempt's name, with the old lease and with a wrong one.
        forged = LeasedJob(lease=new.lease, rollout_id=new.rollout_id, attempt=2)
        back.say(result_of(forged, worker="first"))
        assert back.next("settled") == new.lease
        second.say(result_of(new, worker="second"))
        group = runner.wait_group(60)
        assert group is not None
        (rollout,) = group.rollouts
        assert (rollout.outcome, rollout.attempts) == ("succeeded", 2)
        assert rollout.result is not None
        assert rollout.result.worker == "second"
        back.end()
        second.end()


def next_job(worker: Peer) -> LeasedJob:
    """The worker's next job, however long its predecessor takes to be given up."""
    while True:
        answer = worker.answers.get(timeout=30)
        assert answer is not None
        if answer.WhichOneof("message") == "job":
            job: LeasedJob = answer.job
            return job
        worker.say(FromWorker(heartbeat=Heartbeat()))


def test_a_worker_that_comes_back_in_time_keeps_its_lease(listen: Listen) -> None:
    target = listen()
    with runner_on(target) as runner:
        worker = worker_by_hand(target, "m:a")
        runner.submit(load_tasks([1]))
        job = worker.next("job")
        worker.end()
        worker = worker_by_hand(target, "m:a", held=[held(job, ended=True)])
        worker.say(result_of(job))
        assert outcome_of(runner) == ("succeeded", 1)
        assert worker.next("settled") == job.lease
        worker.end()


def test_a_job_that_never_reached_its_worker_is_offered_again_as_the_same_attempt(listen: Listen) -> None:
    target = listen()
    with runner_on(target) as runner:
        worker = worker_by_hand(target, "m:a")
        runner.submit(load_tasks([1]))
        job = worker.next("job")
        worker.end()
        worker = worker_by_hand(target, "m:a")
        assert worker.next("cancel") == job.lease
        worker.say(FromWorker(released={"lease": job.lease, "begun": False}))
        again = worker.next("job")
        assert (again.rollout_id, again.attempt) == (job.rollout_id, 1)
        assert again.lease != job.lease
        worker.say(result_of(again))
        assert outcome_of(runner) == ("succeeded", 1)
        worker.end()


def test_two_runners_share_the_slots_evenly(listen: Listen) -> None:
    target = listen()
    with runner_on(target) as one, runner_on(target) as other:
        one.submit(load_tasks(range(10)))
        worker = worker_by_hand(target, "m:a", slots=2)
        jobs = [worker.next("job"), worker.next("job")]
        assert jobs[0].runner == jobs[1].runner
        other.submit(load_tasks(range(10)))
        wait_until(lambda: other.summary().states.get("running"))
        served = []
        for _ in range(12):
            worker.say(result_of(jobs.pop(0)))
            jobs.append(worker.next("job"))
            served.append(jobs[-1].runner)
        # Each has one of the two slots, but for the first moments.
        assert min(Counter(served).values()) >= 4
        worker.say(FromWorker(goodbye={}))
        worker.wait_end()


def test_an_answer_that_is_no_result_loses_the_rollout(listen: Listen) -> None:
    target = listen()
    with Runner(
        RemoteWorkers(f"grpc://{target}"), RunOptions(agent="m:a", retry=RetryRule(max_attempts=1))
    ) as runner:
        worker = worker_by_hand(target, "m:a")
        runner.submit(load_tasks([1, 2]))
        worker.say(raw_result(worker.next("job"), b'{"rollout_id": ['))
        other = worker.next("job")
        stranger = Result(rollout_id="ro_x", attempt=1, outcome="succeeded", start_ns=1, end_ns=2)
        worker.say(raw_result(other, stranger.to_json()))
        told = [group.rollouts[0] for group in (runner.wait_group(60), runner.wait_group(60)) if group]
        assert [each.outcome for each in told] == ["lost", "lost"]
        messages = sorted(each.result.error_message or "" for each in told if each.result)
        assert messages[0].startswith("its worker answered with the result of another rollout")
        assert messages[1].startswith("its worker's answer is no result: ")
        worker.end()


def test_a_worker_refuses_jobs_that_it_does_not_offer_and_bytes_that_are_none(listen: Listen) -> None:
    target = listen()
    with remote_worker(target, "plain"):
        runner = Peer(target, "Offer", FromRunner(hello=RunnerHello(runner="r")))
        job = Job(
            rollout_id="ro_1",
            attempt=1,
            group_id="g",
            run_id="r",
            project="p",
            task=Task(task_id="t", input=None),
            agent="os:abort",
        )
        for data, sentence in (
            (job.to_json(), f"this worker offers {AGENTS}:plain, and not os:abort"),
            (b"[]", "are no job"),
        ):
            runner.say(FromRunner(wanted=Wanted(agent=f"{AGENTS}:plain", more=1)))
            slot = runner.next("slot")
            runner.say(
                FromRunner(
                    job=LeasedJob(lease=slot.lease, agent=slot.agent, rollout_id="ro_1", attempt=1, job=data)
                )
            )
            result = Result.from_json(runner.next("result").result)
            assert result.outcome == "failed"
            assert sentence in (result.error_message or "")
            runner.say(FromRunner(settled=slot.lease))
        runner.end()


@pytest.mark.parametrize(
    ("method", "first"),
    [
        ("Take", FromWorker(heartbeat=Heartbeat())),
        ("Take", FromWorker(hello={"worker": "w", "agents": ["m:a"], "slots": 0})),
        ("Take", FromWorker(hello={"worker": "w", "agents": ["m:a"], "slots": 1 << 20})),
        ("Take", FromWorker(hello={"worker": "w", "agents": [], "slots": 1})),
        ("Take", FromWorker(hello={"worker": "w\n", "agents": ["m:a"], "slots": 1})),
        ("Take", FromWorker(hello={"worker": "w", "agents": ["m:a"], "slots": 1, "name": "\x1b[2J"})),
        ("Offer", FromRunner(hello={"runner": "x" * 1000})),
        ("Offer", FromRunner(wanted={"agent": "m:a", "more": 1})),
        ("Offer", FromRunner()),
    ],
)
def test_strange_peers_are_sent_away(listen: Listen, method: str, first: FromWorker | FromRunner) -> None:
    assert Peer(listen(), method, first).wait_end() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_job_that_is_too_large_fails_with_what_to_do(listen: Listen) -> None:
    target = listen()
    with runner_on(target) as runner:
        worker = worker_by_hand(target, "m:a")
        runner.submit(load_tasks([{"image": "x" * MAX_JOB_BYTES}]))
        group = runner.wait_group(60)
        assert group is not None
        result = group.rollouts[0].result
        assert result is not None
        assert "put large things into files" in (result.error_message or "")
        worker.end()


def test_without_the_token_neither_side_gets_in(listen: Listen) -> None:
    target = listen(token="secret")
    with pytest.raises(CollectorError, match="asks for its token"):
        RemoteWorkers(f"grpc://{target}", "wrong").start()
    worker = RemoteWorker(["m:a"], f"grpc://{target}")
    worker.start()
    wait_until(lambda: worker.error)
    worker.close()
    workers = RemoteWorkers(f"grpc://{target}", "secret")
    workers.start()
    workers.close()


def test_no_endpoint_and_no_collector_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, listen: Listen
) -> None:
    with pytest.raises(ConfigError, match="the kind remote needs a collector"):
        make_workers("remote", 1)
    monkeypatch.setattr("lightning_sdk.rollouts.workers.remote._START_TIMEOUT_S", 1.0)
    with pytest.raises(CollectorError, match=r"cannot be reached .* start it with `lsdk collect`"):
        RemoteWorkers("grpc://127.0.0.1:1").start()
