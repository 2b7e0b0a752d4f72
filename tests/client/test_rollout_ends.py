"""Rollouts that are cut off, or whose process cannot tell their end any more.

1. truncate() makes the rollout truncated, by the first reason, whatever leaves it afterwards.
2. Outside a rollout that is open and began here it warns, and changes nothing.
3. write_end ends an attempt of a process that died: failed, truncated, cancelled or lost; never complete.
4. An attempt that never began has what write_end was told of it.
5. A later end of the rollout's own counts; after "lost" any.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import lightning_sdk as ls
from lightning_sdk.client.ends import EndedAs, write_end
from lightning_sdk.client.producer import Producer
from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp import Episode, assemble
from lightning_sdk.records import SourcedRecord
from lightning_sdk.testing import capture
from support.client_records import make_call, of_kind, read_spool
from support.record_factory import Tape


@ls.trace_agent
def gives_up(reason: str) -> None:
    make_call()
    make_call()
    ls.truncate(reason)


def test_a_truncated_rollout_says_so_at_its_last_call() -> None:
    with capture() as cap:
        gives_up("turn_limit")
    (episode,) = cap.episodes()
    assert (episode.outcome, episode.truncation_reason) == ("truncated", "turn_limit")
    first, last = episode.transitions
    assert (first.terminated, first.truncated, first.truncation_reason) == (False, False, None)
    assert (last.terminated, last.truncated, last.truncation_reason) == (False, True, "turn_limit")
    assert last.outcome == "truncated"


def test_what_cut_it_first_counts() -> None:
    with capture() as cap, ls.rollout():
        gives_up("context")
        ls.truncate("timeout")
    assert cap.episodes()[0].truncation_reason == "context"


def test_an_exception_that_leaves_it_is_kept_beside_the_reason() -> None:
    @ls.trace_agent
    def exceeds_its_turns() -> None:
        ls.truncate("turn_limit")
        raise RuntimeError("10 turns")

    with capture() as cap, pytest.raises(RuntimeError):
        exceeds_its_turns()
    (episode,) = cap.episodes()
    assert (episode.outcome, episode.error) == ("truncated", "RuntimeError: 10 turns")


def test_a_rollout_inside_a_rollout_is_cut_alone() -> None:
    with capture() as cap, ls.rollout(rollout_id="outer"), ls.rollout(rollout_id="inner"):
        ls.truncate("timeout")
    assert {each.rollout_id: each.outcome for each in cap.episodes()} == {
        "inner": "truncated",
        "outer": "succeeded",
    }


def test_a_reason_that_is_too_long_is_made_to_fit() -> None:
    with capture() as cap:
        gives_up("x" * 1000)
    reason = cap.episodes()[0].truncation_reason
    assert reason is not None
    assert len(reason) == 256


@pytest.mark.parametrize("reason", ["", None, 3])
def test_what_is_no_reason_is_refused(reason: Any) -> None:
    with pytest.raises(ValueError, match="expected a word"):
        ls.truncate(reason)


def test_outside_any_open_rollout_it_warns() -> None:
    with capture() as cap:
        with pytest.warns(RuntimeWarning, match="found no open rollout"):
            ls.truncate("timeout")
        gives_up("turn_limit")
    assert [end.rollout_end.truncation_reason for end in of_kind(cap.records, "rollout_end")] == [
        "turn_limit"
    ]


def test_a_forked_child_cannot_cut_off_the_rollout_of_its_parent() -> None:
    with capture() as cap, ls.rollout():
        child = os.fork()
        if child == 0:
            try:
                with pytest.warns(RuntimeWarning, match="in the process where that began"):
                    ls.truncate("timeout")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    assert cap.episodes()[0].outcome == "succeeded"


def killed() -> Tape:
    """An attempt whose process was killed after a call, one second after the epoch."""
    tape = Tape("killed", rollout="ro_1", group="gr_1", attempt=2)
    tape.start("task-7", metadata={"from": "the rollout"})
    tape.call("a")
    return tape


def ended(spool: Path, outcome: EndedAs, tape: Tape | None, **options: Any) -> Episode:
    with closing(Producer(spool)) as producer:
        write_end(
            producer,
            rollout_id="ro_1",
            attempt=2,
            group_id="gr_1",
            run_id="run_1",
            project="demo",
            task_id="task-7",
            split="train",
            metadata={"from": "the runner"},
            outcome=outcome,
            **options,
        )
    told: list[SourcedRecord] = [] if tape is None else tape.records
    (episode,) = assemble([*told, *read_spool(spool)])
    return episode


@pytest.mark.parametrize(
    ("outcome", "reason", "truncation_reason"),
    [
        ("failed", None, None),
        ("truncated", "timeout", "timeout"),
        ("cancelled", None, "cancelled"),
        ("lost", None, "lost"),
    ],
)
def test_whoever_runs_a_rollout_ends_it_when_its_process_died(
    tmp_path: Path, outcome: EndedAs, reason: str | None, truncation_reason: str | None
) -> None:
    told = ("lightning_sdk.Killed", "signal 9, Bearer abcdefghijklmnopqrstuvwxyz")
    episode = ended(tmp_path, outcome, killed(), error=told, truncation_reason=reason)
    assert (episode.rollout_id, episode.attempt, episode.outcome) == ("ro_1", 2, outcome)
    assert episode.error == "lightning_sdk.Killed: signal 9, Bearer [redacted]"
    assert episode.transitions[-1].truncation_reason == truncation_reason
    assert episode.transitions[-1].terminated is (outcome == "failed")
    # Of the rollout's own start and the runner's the earlier one counts.
    assert episode.metadata == {"from": "the rollout"}
    # Nobody knows how much the dead process had written.
    assert not episode.complete


def test_an_attempt_that_never_began_is_what_the_runner_knows(tmp_path: Path) -> None:
    episode = ended(tmp_path, "failed", None)
    assert (episode.rollout_id, episode.group_id, episode.run_id) == ("ro_1", "gr_1", "run_1")
    assert (episode.project, episode.task_id, episode.split) == ("demo", "task-7", "train")
    assert (episode.metadata, episode.transitions, episode.outcome) == ({"from": "the runner"}, [], "failed")
    assert episode.complete


@pytest.mark.parametrize("outcome", ["failed", "lost"])
def test_a_rollout_that_ends_after_all_tells_its_own_outcome(tmp_path: Path, outcome: EndedAs) -> None:
    tape = killed()
    if outcome == "failed":
        tape.second = 1 << 33  # later than the runner's
    tape.finish()
    episode = ended(tmp_path, outcome, tape)
    assert (episode.outcome, episode.complete) == ("succeeded", True)


@pytest.mark.parametrize(
    ("outcome", "reason"), [("succeeded", None), ("truncated", None), ("failed", "timeout")]
)
def test_ends_that_contradict_themselves_are_refused(
    tmp_path: Path, outcome: Any, reason: str | None
) -> None:
    with pytest.raises(ConfigError, match="with 'truncated' only"):
        ended(tmp_path, outcome, None, truncation_reason=reason)
