"""Generators, async generators and coroutines of traced callables, driven so that they behave as they are.

Each resume of the user's code runs inside the execution's scope, and the scope is left before a value goes to
the consumer: nothing of ours is visible between two yields. What the consumer sends or throws goes in
unchanged; what is yielded, returned or raised comes out unchanged. A value that passes through is not kept
alive.
"""

from __future__ import annotations

import inspect
import opcode
import sys
import weakref
from collections.abc import AsyncGenerator, Generator
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType
from typing import Any

from lightning_sdk.client.execution import Execution, Keeper
from lightning_sdk.client.scope import get_current, set_current


def continuation(execution: Execution, result: Any) -> Any | None:
    """What to return in place of `result` if the user's code goes on in it; None if it does not.

    A plain function may return a coroutine or generator (a decorator between ours and the `async def` does):
    its body is part of the execution. One that has begun to run is somebody else's and is left alone.
    """
    driver: Any
    kind = type(result)
    if kind is CoroutineType and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        driver = _coroutine(execution, Keeper(execution, result), result)
    elif kind is GeneratorType and _is_fresh_generator(result):
        driver = _generator(execution, Keeper(execution), result)
    elif kind is AsyncGeneratorType and _is_fresh_async_generator(result):
        driver = _async_generator(execution, Keeper(execution), result)
    else:
        return None
    driver.__name__, driver.__qualname__ = result.__name__, result.__qualname__
    execution.driver = weakref.ref(driver)
    return driver


def _is_fresh_generator(generator: GeneratorType[Any, Any, Any]) -> bool:
    # A generator made by types.coroutine can be awaited, which ours could not.
    is_awaitable = generator.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE
    return not is_awaitable and inspect.getgeneratorstate(generator) == inspect.GEN_CREATED


def _is_fresh_async_generator(generator: AsyncGeneratorType[Any, Any]) -> bool:
    if sys.version_info >= (3, 12):
        return inspect.getasyncgenstate(generator) == inspect.AGEN_CREATED
    frame = generator.ag_frame
    return frame is not None and frame.f_lasti <= _first_instruction(generator.ag_code)


def _first_instruction(code: CodeType) -> int:
    """Where the frame of an async generator stands before its body has begun to run."""
    if sys.version_info < (3, 11):
        return -1
    # After this instruction, before which there are others where a function shares variables with others.
    return code.co_code[::2].index(opcode.opmap["RETURN_GENERATOR"]) * 2


async def _coroutine(execution: Execution, keeper: Keeper, coroutine: CoroutineType[Any, Any, Any]) -> Any:
    keeper.begin()
    before = get_current()
    try:
        with execution:
            result = await coroutine
    except BaseException as error:
        set_current(before)  # as in a plain call, see decorators.py
        execution.finish_raised(error)
        raise
    execution.finish_returned(result)
    return result


def _generator(
    execution: Execution, keeper: Keeper, inner: GeneratorType[Any, Any, Any]
) -> Generator[Any, Any, Any]:
    keeper.begin()
    thrown: BaseException | None = None
    sent: Any = None
    while True:
        before = get_current()
        try:
            with execution:
                # In a list, from which it is taken out on its way to the consumer: we keep no reference to
                # it.
                passing = [inner.send(sent) if thrown is None else inner.throw(thrown)]
        except StopIteration as stop:
            execution.finish_returned(stop.value, thrown)
            return stop.value
        except BaseException as error:
            set_current(before)
            execution.finish_raised(error)
            thrown = None  # else the exception would hold this frame, and this frame the exception
            raise
        thrown = before = None
        sent = None
        try:
            sent = yield passing.pop()
        except BaseException as error:
            # Thrown in outside this clause, so that it is no context of what the user's code raises then.
            thrown = error


async def _async_generator(
    execution: Execution, keeper: Keeper, inner: AsyncGeneratorType[Any, Any]
) -> AsyncGenerator[Any, Any]:
    keeper.begin()
    thrown: BaseException | None = None
    sent: Any = None
    step = _first_step(inner)
    while True:
        before = get_current()
        try:
            with execution:
                passing = [await step]
        except StopAsyncIteration:
            execution.finish_returned(None, thrown)
            return
        except BaseException as error:
            set_current(before)
            execution.finish_raised(error)
            thrown = None  # else the exception would hold this frame, and this frame the exception
            raise
        thrown = before = None
        try:
            sent = yield passing.pop()
        except BaseException as error:
            thrown = error
        step = inner.asend(sent) if thrown is None else inner.athrow(thrown)
        sent = None


def _first_step(inner: AsyncGeneratorType[Any, Any]) -> Any:
    """Begin `inner` unseen by the event loop, which closes what it knows: `inner` is ours to close."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=None)
    try:
        return inner.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)
