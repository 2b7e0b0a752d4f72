"""The testing seam: everything in memory, process-wide, and nothing left behind.

1. It receives records and writes nothing; captures stack, and the innermost receives.
2. A second thread may not open one while one is open.
3. Leaving restores recorder and patches; a rollout that began inside never leaks out, and one that began
   outside is none the less complete.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import openai  # noqa: F401 - so that its integration has something to patch

import lightning_sdk as ls
from lightning_sdk.client import faults, integrations
from lightning_sdk.mdp import assemble
from lightning_sdk.testing import capture
from support.client_records import bodies, make_call, of_kind, read_spool


@ls.trace_tool
def look_up(word: str) -> str:
    return word[::-1]


@ls.trace_agent(name="solver")
def solve(word: str) -> str:
    make_call()
    answer = look_up(word)
    ls.emit_reward(1.0)
    return answer


def test_it_shows_calls_tools_scopes_rewards_and_episodes(tmp_path: Path) -> None:
    with capture() as cap:
        solve("abc")
        make_call()
    inside, outside = cap.calls
    assert (inside.agent, inside.outcome, inside.attempts, inside.streamed) == ("solver", "ok", 1, False)
    assert inside.request["messages"] == [{"role": "user", "content": "hi"}]
    assert inside.choices[0].message["content"] == "hello"
    assert outside.rollout_id is None
    assert [(tool.arguments, tool.result) for tool in cap.tools] == [({"word": "abc"}, "cba")]
    assert [scope.agent for scope in cap.scopes] == ["solver"]
    assert [(reward.value, reward.bound) for reward in cap.rewards] == [(1.0, "scope")]
    episode = next(episode for episode in cap.episodes() if episode.rollout_id)
    assert (episode.outcome, episode.complete, episode.return_) == ("succeeded", True, 1.0)
    assert [transition.reward for transition in episode.transitions] == [1.0]
    assert not (tmp_path / "home").exists()


def test_captures_stack_and_the_innermost_receives() -> None:
    with capture() as outer:
        with capture() as inner:
            solve("a")
        solve("b")
    assert [tool.result for tool in inner.tools] == ["a"]
    assert [tool.result for tool in outer.tools] == ["b"]


def test_an_outer_rollout_writes_to_the_innermost_capture_and_back() -> None:
    with capture() as outer, ls.rollout() as run:
        with capture() as inner:
            make_call()
        make_call()
    assert "call" in bodies(inner.records)
    assert bodies(outer.records)[-3:] == ["call", "rollout_end", "leave"]
    assert {sourced.record.rollout_id for sourced in inner.records} == {run.rollout_id}


def test_a_rollout_that_is_recorded_for_real_is_complete_whatever_was_captured_in_the_middle(
    tmp_path: Path,
) -> None:
    ls.init()
    with ls.rollout():
        make_call()
        with capture() as first:
            make_call()
            with capture() as second:
                make_call()
            make_call()
        with capture():
            make_call()
        make_call()
    ls.shutdown()
    records = read_spool(tmp_path / "home" / "spool")
    assert bodies(records) == ["join", "rollout_start", "call", "call", "rollout_end", "leave"]
    assert of_kind(records, "leave")[0].leave.count == len(records)
    assert bodies(first.records) == ["join", "call", "call"]
    assert bodies(second.records) == ["join", "call"]
    (episode,) = assemble(records)
    assert episode.complete


def installed() -> dict[str, bool]:
    return {status.name: status.state == "installed" for status in integrations.status()}


def test_init_inside_has_its_integrations_once_the_capture_is_left() -> None:
    with capture():
        with capture():
            ls.init()
        assert installed()["openai"]
    assert installed()["openai"]
    ls.shutdown()
    with capture():
        ls.init(integrations=())
        assert installed()["openai"]
    assert not installed()["openai"]


def test_shutdown_inside_leaves_no_patch_once_the_capture_is_left() -> None:
    ls.init()
    with capture():
        ls.shutdown()
        assert installed()["openai"]
    assert not installed()["openai"]


def test_what_is_counted_while_it_is_open_is_no_ones_else(tmp_path: Path) -> None:
    ls.init()
    with capture():
        look_up("outside any rollout: kept here")
        faults.count("made_up")
    solve("a")
    ls.shutdown()
    assert "counters" not in bodies(read_spool(tmp_path / "home" / "spool"))


def test_it_receives_what_other_threads_do() -> None:
    with capture() as cap:
        thread = threading.Thread(target=solve, args=("abc",))
        thread.start()
        thread.join()
    assert len(cap.calls) == 1


def test_a_second_thread_may_not_open_one_until_the_first_is_left() -> None:
    refused: list[str] = []

    def open_one() -> None:
        try:
            with capture():
                pass
        except RuntimeError as error:
            refused.append(str(error))

    def in_thread() -> None:
        thread = threading.Thread(target=open_one)
        thread.start()
        thread.join()

    with capture():
        in_thread()
    in_thread()
    assert len(refused) == 1
    assert "another thread has a capture() open" in refused[0]


def test_recording_goes_on_as_before_when_it_is_left(tmp_path: Path) -> None:
    ls.init(project="before")
    solve("a")
    with capture() as cap:
        solve("b")
    solve("c")
    assert len(cap.records) == 9
    assert len(read_spool(tmp_path / "home" / "spool")) == 18


def test_what_began_inside_and_ends_outside_is_written_inside(tmp_path: Path) -> None:
    @ls.trace_agent
    def stream() -> Iterator[int]:
        yield 1
        make_call()

    with capture() as cap:
        running = stream()
        next(running)
    ls.init()
    with capture() as later:
        assert list(running) == []
    assert later.records == []
    assert bodies(cap.records)[-4:] == ["call", "scope_end", "rollout_end", "leave"]
    assert not (tmp_path / "home").exists()


def test_init_inside_counts_from_the_end_of_the_capture_on(tmp_path: Path) -> None:
    with capture() as cap:
        ls.init(project="later")
        solve("a")
    solve("b")
    assert len(cap.calls) == 1
    assert len(read_spool(tmp_path / "home" / "spool")) == 9
