"""What a signal handler of the agent raises in the middle of our code reaches the agent, whatever its type."""

from __future__ import annotations

import functools
import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults
from lightning_sdk.testing import capture
from support.client_records import of_kind, read_spool
from support.interruptions import Deadline, swallowed_at


@pytest.fixture(autouse=True)
def _as_users_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LIGHTNING_STRICT", "0")
    gc.disable()
    yield
    gc.enable()


@ls.trace_tool
def tool(question: object) -> object:
    return question


@ls.trace_agent
def agent() -> object:
    return tool({"text": "a question", "nested": [1, 2.5, {"deep": None}], "odd": object})


@ls.trace_agent
def failing() -> None:
    raise KeyError("a key")


def fail() -> None:
    with pytest.raises(KeyError):
        failing()


@ls.trace_agent
def counting() -> Iterator[int]:
    yield 1
    yield 2


def reward() -> None:
    with ls.rollout(task_id="t", metadata={"a": 1}):
        agent()
        ls.annotate(note="n")
        ls.emit_reward({"quality": 1.0})


@pytest.mark.parametrize("work", [agent, fail, lambda: list(counting()), reward])
def test_a_deadline_at_any_place_of_our_code_reaches_the_agent(
    work: Callable[[], object], tmp_path: Path
) -> None:
    work()  # what is imported and made once
    places, swallowed = swallowed_at(work)
    assert places > 20
    assert swallowed == []
    assert ls.current_rollout() is None
    # What was cut short is counted, where a user can see it.
    work()
    told = of_kind(read_spool(tmp_path / "home" / "spool"), "counters")
    assert told[-1].counters.values["interrupted_by_signal"] > 10


class Handlers:
    """The shapes that a handler may have."""

    def method(self, number: int, interrupted: FrameType | None) -> None:
        raise Deadline

    def __call__(self, *received: object) -> None:
        raise Deadline

    def that_is_gone(self, number: int, interrupted: FrameType | None) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise Deadline

    def that_forgets_its_frame(self, number: int, interrupted: FrameType | None) -> None:
        del interrupted
        raise Deadline

    def that_calls(self, number: int, interrupted: FrameType | None) -> None:
        self.method(number, None)


def make_another_of_it() -> None:
    try:
        signal.raise_signal(signal.SIGUSR1)
    except Deadline as error:
        raise ValueError("ours, made of it") from error


@pytest.mark.parametrize(
    "handler",
    [
        Handlers().method,
        Handlers(),
        functools.partial(Handlers.method, Handlers()),
        Handlers().that_is_gone,
        Handlers().that_forgets_its_frame,
        functools.partial(Handlers().that_forgets_its_frame),
        Handlers().that_calls,
    ],
)
def test_a_handler_is_known_in_every_shape(handler: Callable[[int, FrameType | None], Any]) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Deadline), faults.guard("test"):
            signal.raise_signal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, handler)
        with pytest.raises(Deadline), faults.guard("test"):
            make_another_of_it()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_error_of_ours_is_not_taken_for_the_agents_while_that_handles_a_deadline() -> None:
    def on_signal(number: int, interrupted: FrameType | None) -> None:
        raise Deadline

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except Deadline:
            with faults.guard("test"):
                raise ValueError("ours")  # noqa: B904
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt("hostile"), GeneratorExit(), OSError()])
def test_what_the_users_repr_and_str_raise_stays_inside(raised: BaseException) -> None:
    class Hostile(Exception):
        def __repr__(self) -> str:
            raise raised

        __str__ = __repr__

    def work() -> None:
        with ls.rollout(metadata={"m": Hostile()}):
            tool(Hostile())
            ls.annotate(n=Hostile())
            raise Hostile

    with capture() as cap, pytest.raises(Hostile):
        work()
    assert cap.tools[0].arguments == {"question": "<Hostile without a repr>"}
    (end,) = of_kind(cap.records, "rollout_end")
    assert end.rollout_end.error.type.endswith("Hostile")


@pytest.mark.parametrize("shown", ["repr", "str"])
def test_an_interrupt_while_the_users_code_shows_a_value_reaches_the_agent(shown: str) -> None:
    class Slow(Exception):
        def __repr__(self) -> str:
            signal.raise_signal(signal.SIGINT)
            return "slow"

        __str__ = __repr__

    @ls.trace_agent
    def work() -> None:
        if shown == "str":
            raise Slow
        tool(Slow())

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with capture(), pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_installation_that_was_interrupted_goes_on_with_the_next_execution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lightning_sdk.client import integrations

    def on_signal(number: int, interrupted: FrameType | None) -> None:
        raise Deadline

    asked: list[object] = []

    def select(names: object) -> None:
        asked.append(names)
        if len(asked) == 1:
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(integrations, "select", select)
    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        with pytest.raises(Deadline):
            agent()
        agent()
        agent()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(asked) == 2
