"""Jobs and results as JSON, and rules of retrying."""

from __future__ import annotations

import pytest

from lightning_sdk.errors import ConfigError, WireError
from lightning_sdk.rollouts.job import Job, Result
from lightning_sdk.rollouts.retries import RetryRule
from lightning_sdk.rollouts.tasks import Task

JOB = Job(
    rollout_id="ro_1",
    attempt=2,
    group_id="gr_1",
    run_id="run_1",
    project="p",
    task=Task(task_id="7", input={"q": "é"}, metadata={"a": [1]}),
    agent="module:function",
    seed=5,
    timeout_s=1,
    routing={"policy_endpoint": "http://x/v1", "policy_token": "hush"},
)


def result(**facts: object) -> Result:
    return Result(
        **{"rollout_id": "ro_1", "attempt": 1, "outcome": "failed", "start_ns": 1, "end_ns": 2, **facts}
    )  # type: ignore[arg-type]


def test_a_job_and_a_result_come_back_as_they_went() -> None:
    assert Job.from_json(JOB.to_json()) == JOB
    told = result(error_type="ValueError", error_message="a\nb", traceback="t", worker="w", end_written=True)
    assert Result.from_json(told.to_json()) == told
    assert b"\n" not in told.to_json()


def test_the_token_is_not_shown() -> None:
    assert "hush" not in repr(JOB)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b'{"rollout_id": 1}',
        JOB.to_json().replace(b'"attempt":2', b'"attempt":"2"'),
        JOB.to_json().replace(b'"input"', b'"inputs"'),
        b"[" * 100_000,
    ],
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="are no job and no result"):
        Job.from_json(data)
    with pytest.raises(WireError):
        Result.from_json(data)


@pytest.mark.parametrize(
    ("on", "ended", "allowed"),
    [
        ("lost", result(outcome="lost", error_type="WorkerLost"), True),
        ("lost", result(error_type="ValueError"), False),
        ("failed", result(error_type="ValueError"), True),
        ("timeout", result(outcome="truncated", truncation_reason="timeout"), True),
        ("timeout", result(outcome="truncated", truncation_reason="turn_limit"), False),
        ("RateLimitError", result(error_type="openai.RateLimitError"), True),
        ("openai.*", result(error_type="openai.RateLimitError"), True),
        ("TimeoutError", result(outcome="truncated", error_type="TimeoutError"), False),
        ("failed", result(outcome="succeeded"), False),
    ],
)
def test_what_is_tried_again(on: str, ended: Result, allowed: bool) -> None:
    assert RetryRule(on=[on]).allows(ended, 1) is allowed
    assert not RetryRule(on=[on]).allows(ended, 2)


def test_the_wait_doubles_up_to_the_most_and_differs_among_rollouts() -> None:
    rule = RetryRule(backoff_s=1.0, max_backoff_s=10.0)
    for used, whole in ((1, 1.0), (2, 2.0), (4, 8.0), (5, 10.0), (500, 10.0)):
        assert whole / 2 <= rule.delay_s("ro_1", used) <= whole
    assert rule.delay_s("ro_1", 1) != rule.delay_s("ro_2", 1)


def test_a_rule_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 attempt"):
        RetryRule(max_attempts=0)
