"""The client's counters: what went wrong or was dropped is written where a user can see it.

1. Written when a rollout is left, if they have changed, and at the end; cumulative, without zeros.
2. Each count is one producer's: neither the next one's, nor a forked child's too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults
from lightning_sdk.records import SourcedRecord
from support.client_records import bodies, make_call, of_kind, read_spool, run_program

EMPTY_ROLLOUT = ["join", "rollout_start", "rollout_end", "leave"]


def told(records: list[SourcedRecord]) -> list[dict[str, int]]:
    return [dict(record.counters.values) for record in of_kind(records, "counters")]


def roll_out() -> None:
    with ls.rollout():
        pass


def test_they_follow_the_leave_of_a_rollout_when_they_have_changed(tmp_path: Path) -> None:
    ls.init()
    roll_out()
    make_call()
    roll_out()
    roll_out()
    make_call()
    roll_out()
    records = read_spool(tmp_path / "home" / "spool")
    counted = [*EMPTY_ROLLOUT, "counters"]
    assert bodies(records) == EMPTY_ROLLOUT + counted + EMPTY_ROLLOUT + counted
    assert told(records) == [{"calls_outside_rollout": 1}, {"calls_outside_rollout": 2}]
    first = of_kind(records, "counters")[0]
    assert (first.rollout_id, first.attempt, first.order) == ("", 0, 0)
    assert first.start_ns == first.end_ns > 0
    assert [record.leave.count for record in of_kind(records, "leave")] == [4] * 4


def test_the_last_of_them_are_written_at_the_end_even_where_nothing_else_was(tmp_path: Path) -> None:
    ls.init()
    make_call()
    assert not (tmp_path / "home").exists()
    ls.shutdown()
    assert told(read_spool(tmp_path / "home" / "spool")) == [{"calls_outside_rollout": 1}]


def test_the_next_producer_begins_at_nothing(tmp_path: Path) -> None:
    ls.init(home=tmp_path / "a")
    make_call()
    ls.shutdown()
    ls.init(home=tmp_path / "b")
    roll_out()
    ls.shutdown()
    assert told(read_spool(tmp_path / "a" / "spool")) == [{"calls_outside_rollout": 1}]
    assert bodies(read_spool(tmp_path / "b" / "spool")) == EMPTY_ROLLOUT


def test_a_configuration_that_is_replaced_tells_what_was_counted_for_it(tmp_path: Path) -> None:
    roll_out()
    make_call()
    ls.init(home=tmp_path / "b")
    make_call()
    make_call()
    ls.shutdown()
    assert told(read_spool(tmp_path / "home" / "spool")) == [{"calls_outside_rollout": 1}]
    assert told(read_spool(tmp_path / "b" / "spool")) == [{"calls_outside_rollout": 2}]


def test_our_own_errors_are_among_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_STRICT", "0")
    ls.init()
    with faults.guard("somewhere"):
        raise LookupError
    ls.shutdown()
    assert told(read_spool(tmp_path / "home" / "spool")) == [{"error.somewhere": 1}]


def test_a_forked_child_tells_its_own_and_a_program_tells_them_at_its_end(tmp_path: Path) -> None:
    code = """
import os
import lightning_sdk as ls
from lightning_sdk.client import faults

ls.init()
with ls.rollout():
    faults.count("before_the_fork", 3)
child = os.fork()
faults.count("in_the_child" if child == 0 else "in_the_parent")
if child:
    os.waitpid(child, 0)
"""
    ran = run_program(code, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    records = read_spool(tmp_path / ".lightning" / "spool")
    by_producer: dict[bytes, dict[str, int]] = {}
    for sourced in records:
        if sourced.record.WhichOneof("body") == "counters":
            by_producer[sourced.producer] = dict(sourced.record.counters.values)
    parent = next(item.producer for item in records if item.record.WhichOneof("body") == "rollout_start")
    assert by_producer.pop(parent) == {"before_the_fork": 3, "in_the_parent": 1}
    assert list(by_producer.values()) == [{"in_the_child": 1}]
