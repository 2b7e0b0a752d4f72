"""A rollout goes with a request, and goes on where the service says so."""

from __future__ import annotations

import asyncio
import random
import string
from contextlib import suppress
from pathlib import Path

import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults
from lightning_sdk.client.propagation.context import decode, encode, scope_of
from lightning_sdk.client.propagation.http import HEADER
from lightning_sdk.client.scope import current
from lightning_sdk.errors import WireError
from lightning_sdk.testing import capture
from support.client_records import bodies, of_kind, read_spool, run_program

NAMES = ["plain", "with space & = % ; , \n", "ünïcödé \N{ROCKET}", "x" * 256]


def rollout_id() -> str | None:
    here = ls.current_rollout()
    return here.rollout_id if here else None


def test_what_is_injected_is_extracted() -> None:
    with capture() as cap:
        with ls.rollout(rollout_id="a"):
            headers = ls.inject({"accept": "text/plain"})
        assert set(headers) == {"accept", HEADER}
        assert rollout_id() is None
        with ls.extract(headers):
            assert rollout_id() == "a"
            ls.emit_reward(1)
        assert rollout_id() is None
    assert [record.rollout_id for record in of_kind(cap.records, "reward")] == ["a"]


def test_outside_any_rollout_headers_stay_as_they_are() -> None:
    assert ls.inject() == {}
    given = {"accept": "*/*"}
    assert ls.inject(given) is given
    assert given == {"accept": "*/*"}


@pytest.mark.parametrize("name", NAMES)
def test_any_name_survives_the_header(name: str) -> None:
    @ls.trace_agent(name)
    def solve() -> None:
        headers = ls.inject()
        value = headers[HEADER]
        assert value.isascii()
        assert value.isprintable()
        assert " " not in value
        found = decode(value)
        assert (found.rollout_id, found.task_id, found.agent) == (name, name, name)
        assert found.scope_id == current().scope_id  # type: ignore[union-attr]

    with capture(), ls.rollout(rollout_id=name, task_id=name, run_id=name):
        solve()


@pytest.mark.parametrize(
    "headers",
    [
        lambda value: {HEADER: value},
        lambda value: {HEADER.upper(): value},
        lambda value: [(b"accept", b"*/*"), (HEADER.encode(), value.encode())],
        lambda value: iter([(HEADER.title(), value)]),
    ],
)
def test_headers_come_in_many_shapes(headers) -> None:  # type: ignore[no-untyped-def]
    with capture():
        with ls.rollout(rollout_id="a"):
            value = ls.inject()[HEADER]
        with ls.extract(headers(value)):
            assert rollout_id() == "a"

        async def serve() -> str | None:
            async with ls.extract(headers(value)):
                return rollout_id()

        assert asyncio.run(serve()) == "a"


def test_a_block_that_raises_leaves_the_rollout() -> None:
    with capture():
        with ls.rollout(rollout_id="a"):
            headers = ls.inject()
        with pytest.raises(KeyError), ls.extract(headers):
            raise KeyError
        assert rollout_id() is None


def test_a_service_of_its_own_joins_as_a_producer_of_its_own(tmp_path: Path) -> None:
    with ls.rollout(rollout_id="a", task_id="7"):
        headers = dict(ls.inject())
    code = f"""
import lightning_sdk as ls

@ls.trace_agent
def search():
    ls.emit_reward(1)

for _ in range(2):
    with ls.extract({headers!r}):
        search()
with ls.extract({{}}):
    assert ls.current_rollout() is None
"""
    ran = run_program(code, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    records = read_spool(tmp_path / ".lightning" / "spool")
    visit = ["scope_start", "reward", "scope_end", "leave"]
    assert bodies(records) == ["join", *visit, *visit]
    assert [item.record.leave.count for item in records if item.record.HasField("leave")] == [5, 9]
    mine = read_spool(tmp_path / "home" / "spool")
    assert records[0].record.join.parent_producer == mine[0].producer
    assert {item.record.rollout_id for item in records} == {"a"}


HOSTILE = [
    "",
    "rollout=",
    "attempt=1",
    "rollout=a",
    "rollout=a&attempt=0",
    "rollout=a&attempt=99999999999999999999999",
    "rollout=a&attempt=\u0661",
    "rollout=a&rollout=b&attempt=1",
    "rollout=a&attempt=1&producer=zz",
    "rollout=a&attempt=1&producer=abcd",
    "rollout=%ff&attempt=1",
    "rollout=a&attempt=1&order=-1",
    "rollout=" + "a" * 300 + "&attempt=1",
    "rollout=a&attempt=1&" + "&".join(f"x{n}=1" for n in range(100)),
    "a" * 100_000,
    "\x00\xff",
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_a_header_of_another_make_is_refused_and_counted(value: str) -> None:
    with pytest.raises(WireError):
        decode(value)
    before = faults.counters().get("contexts_refused", 0)
    with capture(), ls.rollout(rollout_id="mine"), ls.extract({HEADER: value}):
        assert rollout_id() == "mine"
    assert faults.counters()["contexts_refused"] == before + 1


def test_any_text_at_all_is_read_or_refused() -> None:
    chance = random.Random(7)
    alphabet = string.printable + "=&%ü\x00"
    for _ in range(3000):
        text = "".join(chance.choices(alphabet, k=chance.randrange(80)))
        with suppress(WireError):
            decode(text)
        with suppress(WireError):
            decode(f"rollout=a&attempt=1&{text}")


def test_no_setting_comes_in_by_a_header(tmp_path: Path) -> None:
    header = f"rollout=a&attempt=1&set.home={tmp_path / 'stolen'}&set.endpoint=grpc://127.0.0.1:1"
    with ls.extract({HEADER: header}):
        ls.emit_reward(1)
    assert not (tmp_path / "stolen").exists()
    assert bodies(read_spool(tmp_path / "home" / "spool")) == ["join", "reward", "leave"]


def test_a_scope_is_the_same_after_a_journey_within_the_process() -> None:
    with capture(), ls.rollout(rollout_id="a"):
        here = current()
        assert here is not None
        text = encode(here)
        assert text is not None
        assert scope_of(decode(text)).rollout is here.rollout
