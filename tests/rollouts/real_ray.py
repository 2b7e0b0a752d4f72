"""Real Ray, one node: `nox -s ray`. Not collected with the suite, since Ray is large and slow to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.collector.reader import open_reader
from lightning_sdk.home import Home
from lightning_sdk.rollouts.plan import RunOptions
from lightning_sdk.rollouts.retries import RetryRule
from lightning_sdk.rollouts.runner import Runner
from lightning_sdk.rollouts.tasks import load_tasks
from lightning_sdk.rollouts.workers.ray_actors import RayWorkers
from support.waiting import wait_until

TESTS = Path(__file__).parents[1]
AGENTS = "support.rollout_agents"


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(TESTS))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def test_actors_run_every_kind_of_ending_and_the_records_are_stored(tmp_path: Path) -> None:
    names = ["plain", "coroutine", "failing", "exiting_at_once", "hanging_in_c"]
    rows = [{"id": name, "agent": f"{AGENTS}:{name}"} for name in names]
    options = RunOptions(timeout_s=5.0, max_failures=1.0, retry=RetryRule(backoff_s=0.0))
    ended: dict[str, str] = {}
    with Runner(RayWorkers(2), options) as runner:
        runner.submit(load_tasks(rows))
        runner.run(lambda group: ended.update({group.task.task_id: group.rollouts[0].outcome}))
    assert ended == {
        "plain": "succeeded",
        "coroutine": "succeeded",
        "failing": "failed",
        "exiting_at_once": "lost",
        "hanging_in_c": "truncated",
    }
    reader = open_reader(Home.locate())
    try:
        stored = {each.task_id: each.outcome for each in reader.list_rollouts(RolloutQuery())}
    finally:
        reader.close()
    assert stored == ended


def test_an_actor_that_is_killed_loses_its_rollout_and_another_one_runs_it(tmp_path: Path) -> None:
    workers = RayWorkers(1)
    with Runner(workers, RunOptions(agent=f"{AGENTS}:waiting", retry=RetryRule(backoff_s=0.0))) as runner:
        runner.submit(load_tasks([{"until": str(tmp_path / "now")}]))
        wait_until(lambda: any(Home.locate().spool.glob("*.seg")), timeout_s=60)
        ray.kill(workers._actors[0])
        (tmp_path / "now").touch()
        group = runner.wait_group()
    assert group is not None
    assert (group.rollouts[0].outcome, group.rollouts[0].attempts) == ("succeeded", 2)


def test_a_running_rollout_is_cancelled_by_stopping(tmp_path: Path) -> None:
    with Runner(RayWorkers(1), RunOptions(agent=f"{AGENTS}:hanging_in_c")) as runner:
        runner.submit(load_tasks([1]))
        wait_until(lambda: any(Home.locate().spool.glob("*.seg")), timeout_s=60)
        runner.stop()
        assert runner.summary().states == {"queued": 1}
