"""Decorators work on every kind of callable and change nothing about it.

A table over shapes; each is called in the same way with and without the decorator.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults, scope
from lightning_sdk.errors import ConfigError
from lightning_sdk.testing import capture
from support.client_records import bodies, of_kind, run_program

Decorate = Callable[[Any], Any]


def seen() -> str:
    """What the body of a traced callable sees of its scope."""
    current = scope.current()
    return current.agent if current else "outside"


def function(decorate: Decorate) -> Any:
    @decorate
    def work(value: int, *, plus: int = 0) -> tuple[str, int]:
        return seen(), value + plus

    return work(1, plus=2)


def method(decorate: Decorate) -> Any:
    class Team:
        base = 1

        @decorate
        def work(self, *, plus: int) -> tuple[str, int]:
            return seen(), self.base + plus

    return Team().work(plus=2)


def static_method_below(decorate: Decorate) -> Any:
    class Team:
        @decorate
        @staticmethod
        def work(value: int) -> tuple[str, int]:
            return seen(), value + 2

    assert Team.work(1) == Team().work(1)
    return Team.work(1)


def static_method_above(decorate: Decorate) -> Any:
    class Team:
        @staticmethod
        @decorate
        def work(value: int) -> tuple[str, int]:
            return seen(), value + 2

    return Team().work(1)


def class_method_below(decorate: Decorate) -> Any:
    class Team:
        base = 1

        @decorate
        @classmethod
        def work(cls, plus: int) -> tuple[str, int]:
            return seen(), cls.base + plus

    assert Team.work(2) == Team().work(2)
    return Team.work(2)


def class_method_above(decorate: Decorate) -> Any:
    class Team:
        base = 1

        @classmethod
        @decorate
        def work(cls, plus: int) -> tuple[str, int]:
            return seen(), cls.base + plus

    return Team.work(2)


def coroutine(decorate: Decorate) -> Any:
    @decorate
    async def work(value: int) -> tuple[str, int]:
        await asyncio.sleep(0)
        return seen(), value + 2

    return asyncio.run(work(1))


def async_method(decorate: Decorate) -> Any:
    class Team:
        @decorate
        async def work(self, value: int) -> tuple[str, int]:
            return seen(), value + 2

    return asyncio.run(Team().work(1))


def generator(decorate: Decorate) -> Any:
    @decorate
    def work(value: int) -> Iterator[Any]:
        yield seen()
        yield value + 2

    return tuple(work(1))


def async_generator(decorate: Decorate) -> Any:
    @decorate
    async def work(value: int) -> AsyncIterator[Any]:
        yield seen()
        await asyncio.sleep(0)
        yield value + 2

    async def collect() -> tuple[Any, ...]:
        return tuple([item async for item in work(1)])

    return asyncio.run(collect())


def callable_instance(decorate: Decorate) -> Any:
    class Work:
        def __call__(self, value: int) -> tuple[str, int]:
            return seen(), value + 2

    return decorate(Work())(1)


def partial(decorate: Decorate) -> Any:
    def work(value: int, plus: int) -> tuple[str, int]:
        return seen(), value + plus

    return decorate(functools.partial(work, 1))(2)


def coroutine_under_a_plain_decorator(decorate: Decorate) -> Any:
    def plain(inner: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(*args: Any) -> Any:
            return inner(*args)

        return call

    @decorate
    @plain
    async def work(value: int) -> tuple[str, int]:
        await asyncio.sleep(0)
        return seen(), value + 2

    return asyncio.run(work(1))


def function_that_returns_a_generator(decorate: Decorate) -> Any:
    def stream(value: int) -> Iterator[Any]:
        yield seen()
        yield value + 2

    return tuple(decorate(lambda value: stream(value))(1))


SHAPES = [
    function,
    method,
    static_method_below,
    static_method_above,
    class_method_below,
    class_method_above,
    coroutine,
    async_method,
    generator,
    async_generator,
    callable_instance,
    partial,
    coroutine_under_a_plain_decorator,
    function_that_returns_a_generator,
]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_runs_in_a_scope_and_is_otherwise_unchanged(shape: Callable[[Decorate], Any]) -> None:
    with capture() as cap:
        plain = shape(lambda target: target)
        traced = shape(ls.trace_agent(name="worker"))
    assert plain == ("outside", 3)
    assert traced == ("worker", 3)
    starts = of_kind(cap.records, "scope_start")
    assert starts
    assert {record.scope_start.agent for record in starts} == {"worker"}
    assert [r.rollout_end.outcome for r in of_kind(cap.records, "rollout_end")] == [1] * len(starts)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_recorded_as_a_tool_inside_a_rollout(shape: Callable[[Decorate], Any]) -> None:
    with capture() as cap, ls.rollout():
        assert shape(ls.trace_tool("tool"))[1] == 3
    tools = of_kind(cap.records, "tool_call")
    assert tools
    assert {record.tool_call.name for record in tools} == {"tool"}
    assert {record.tool_call.outcome for record in tools} == {1}


@ls.trace_agent
def at_module_level(task: str, *, n: int = 1) -> str:
    """Its docstring."""
    return task * n


class Holder:
    @ls.trace_agent
    def work(self) -> str:
        return "done"


def test_name_docstring_signature_and_type_are_kept() -> None:
    assert at_module_level.__name__ == "at_module_level"
    assert at_module_level.__doc__ == "Its docstring."
    assert str(inspect.signature(at_module_level)) == "(task: 'str', *, n: 'int' = 1) -> 'str'"
    assert inspect.isfunction(at_module_level)
    assert inspect.ismethod(Holder().work)


def test_coroutines_and_generators_are_still_recognised() -> None:
    async def coroutine_function() -> None: ...

    def generator_function() -> Iterator[int]:
        yield 1

    async def async_generator_function() -> AsyncIterator[int]:
        yield 1

    assert inspect.iscoroutinefunction(ls.trace_agent(coroutine_function))
    assert asyncio.iscoroutinefunction(ls.trace_agent(coroutine_function))
    assert inspect.isgeneratorfunction(ls.trace_agent(generator_function))
    assert inspect.isasyncgenfunction(ls.trace_agent(async_generator_function))
    assert inspect.isgenerator(ls.trace_agent(generator_function)())
    assert inspect.isasyncgen(ls.trace_agent(async_generator_function)())
    pending = ls.trace_agent(coroutine_function)()
    assert inspect.iscoroutine(pending)
    assert pending.__qualname__.endswith("coroutine_function")
    pending.close()


def test_functions_and_bound_methods_pickle_by_name() -> None:
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    method = pickle.loads(pickle.dumps(Holder().work))
    assert method() == "done"


def test_the_default_name_is_the_qualified_one_without_the_functions_around_it() -> None:
    class Team:
        @ls.trace_agent
        def plan(self) -> None: ...

    with capture() as cap:
        Team().plan()
        at_module_level("x")
    assert [r.scope_start.agent for r in of_kind(cap.records, "scope_start")] == [
        "Team.plan",
        "at_module_level",
    ]


def test_a_name_that_was_given_must_fit_and_one_that_was_found_is_made_to() -> None:
    for trace in (ls.trace_agent, ls.trace_tool):
        for name in ("\ud800", "x" * 257):
            with pytest.raises(ConfigError, match=r"UTF-8|257 characters"):
                trace(name=name)

    def work() -> None: ...

    class Odd:
        def __call__(self) -> None: ...

    odd = Odd()
    odd.__qualname__ = 3  # type: ignore[attr-defined]
    with capture() as cap:
        for found in ("\ud800work", "x" * 300):
            work.__qualname__ = found
            ls.trace_agent(work)()
        ls.trace_agent(odd)()
    agents = [record.scope_start.agent for record in of_kind(cap.records, "scope_start")]
    assert [agent.rpartition(".")[2] for agent in agents] == ["\\ud800work", "x" * 256, "Odd"]


@pytest.mark.parametrize("trace", [ls.trace_agent, ls.trace_tool])
def test_a_callable_that_cannot_be_looked_at_runs_all_the_same(
    trace: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Strange:
        @property
        def __signature__(self) -> inspect.Signature:
            raise LookupError("no signature today")

        def __call__(self, value: int) -> int:
            return value + 1

    def breaks(*args: object) -> None:
        raise ImportError("no module today")

    monkeypatch.setenv("LIGHTNING_STRICT", "0")
    with capture(), ls.rollout():
        assert trace(Strange())(1) == 2
        monkeypatch.setattr("lightning_sdk.client.execution.AgentExecution", breaks)
        monkeypatch.setattr("lightning_sdk.client.execution.ToolExecution", breaks)
        before = faults.counters().get("error.trace", 0)
        assert trace(Strange())(1) == 2
        assert trace(str.upper)("x") == "X"
        assert list(trace(lambda: (yield 1))()) == [1]
    assert faults.counters()["error.trace"] == before + 3


def test_wrong_arguments_raise_at_the_call_as_without_the_decorator() -> None:
    @ls.trace_agent
    def stream(task: str) -> Iterator[str]:
        yield task

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'task'"):
        stream()  # type: ignore[call-arg]


def test_a_coroutine_never_awaited_warns_once_by_its_name() -> None:
    @ls.trace_agent
    async def forgotten() -> None: ...

    with warnings.catch_warnings(record=True) as caught, capture() as cap:
        warnings.simplefilter("always")
        forgotten()
    assert [str(w.message).split(".")[-1] for w in caught] == ["forgotten' was never awaited"]
    assert cap.records == []


def test_what_cannot_be_traced_is_refused_where_it_is_decorated() -> None:
    with pytest.raises(ConfigError, match="cannot decorate <class"):
        ls.trace_agent(type("Agent", (), {}))
    with pytest.raises(ConfigError, match="cannot decorate 3"):
        ls.trace_agent(3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="expected a name that is not empty"):
        ls.trace_agent(name=" ")
    with pytest.raises(ConfigError, match="has two names"):
        ls.trace_tool("a", name="b")  # type: ignore[call-overload]


def test_the_exception_of_the_body_passes_unchanged_and_its_traceback_shows_the_body() -> None:
    error = ValueError("no such task")

    @ls.trace_agent
    def fails() -> None:
        raise error

    with capture() as cap, pytest.raises(ValueError) as caught:
        fails()
    assert caught.value is error
    assert caught.traceback[-1].name == "fails"
    end = of_kind(cap.records, "scope_end")[0].scope_end
    assert (end.outcome, end.error.type, end.error.message) == (2, "ValueError", "no such task")
    assert bodies(cap.records) == [
        "join",
        "rollout_start",
        "scope_start",
        "scope_end",
        "rollout_end",
        "leave",
    ]


@pytest.mark.parametrize("trace", [ls.trace_agent, ls.trace_tool])
def test_what_python_makes_a_class_method_by_its_name_stays_one(trace: Any) -> None:
    class Base:
        made: ClassVar[list[str]] = []

        @trace
        def __init_subclass__(cls, **options: str) -> None:
            super().__init_subclass__()
            cls.made.append(cls.__name__ + options["end"])

        @trace
        def __class_getitem__(cls, item: str) -> str:
            return f"{cls.__name__}[{item}]"

        @trace
        def __new__(cls, number: int) -> Base:
            return super().__new__(cls)

        @trace
        def __init__(self, number: int) -> None:
            self.number = number

    class Derived(Base, end="!"):
        pass

    @trace
    def __class_getitem__(item: str) -> str:  # no method: its first argument is its own
        return item

    assert Base.made == ["Derived!"]
    assert Derived["x"] == "Derived[x]"
    assert Derived(3).number == 3
    assert __class_getitem__("plain") == "plain"


def test_a_traced_call_in_the_middle_of_our_own_first_import_runs_as_without_us(tmp_path: Path) -> None:
    code = """
import sys
import lightning_sdk as ls

@ls.trace_agent
def outer():
    return 1

@ls.trace_tool
def tool():
    return 2

class Hook:
    '''Whatever runs while we import: a finaliser, a signal handler, an import hook of somebody's.'''

    seen = set()

    def find_spec(self, name, path=None, target=None):
        if name.startswith("lightning_sdk.") and name not in self.seen:
            self.seen.add(name)
            assert (tool(), outer()) == (2, 1)

sys.meta_path.insert(0, Hook())
print(outer(), len(Hook.seen) > 3)
"""
    ran = run_program(code, tmp_path, LIGHTNING_STRICT="0")
    assert (ran.returncode, ran.stdout) == (0, "1 True\n")
