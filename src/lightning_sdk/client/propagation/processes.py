"""Processes of multiprocessing, and the tasks of pools of them.

A forked process inherits the scope with everything else; for one that is spawned it is in what is pickled for it
anyway. What is pickled for a task names it by text, so that a pool of any kind understands it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning_sdk.client import faults
from lightning_sdk.client.propagation.carrying import call_in, carried_scope, is_servant
from lightning_sdk.client.propagation.context import encode, scope_of_program, settings_for
from lightning_sdk.client.scope import Scope, get_current, set_current

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


def carrying_start(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """`Process.start` of which `run` works in the present scope; a worker of a pool starts without one."""

    @functools.wraps(original)
    def start(self: BaseProcess) -> None:
        scope = carried_scope()
        if scope is None:
            original(self)
            return
        if is_servant(self):
            before = get_current()
            try:
                set_current(None)
                original(self)
            finally:
                set_current(before)
            return
        placed = "run" not in vars(self)
        if placed:
            vars(self)["run"] = _ProcessRun(self, scope)
        try:
            original(self)
        finally:
            if placed:
                vars(self).pop("run", None)

    return start


class _ProcessRun:
    """The `run` of one process: with the scope itself after a fork, with its text after a spawn."""

    def __init__(self, process: BaseProcess, scope: Scope | None, text: str | None = None) -> None:
        self._process = process
        self._scope = scope
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        text = None
        with faults.guard("propagation"):
            text = _text_of(self._scope)
        return _ProcessRun, (self._process, None, text)

    def __call__(self) -> None:
        vars(self._process).pop("run", None)
        run = self._process.run
        if self._scope is not None:
            call_in(self._scope, run)
        elif self._text is not None:
            _TaskByText(run, self._text)()
        else:
            run()


def carrying_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    """`ProcessPoolExecutor.submit` whose tasks work in the scope that they were submitted in."""

    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return original(self, _carried(fn), *args, **kwargs)

    return submit


def carrying_pool_method(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `multiprocessing.Pool` that is given a function, or of a `ThreadPool`."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        from multiprocessing.pool import ThreadPool

        carried = _carried_by_thread if isinstance(self, ThreadPool) else _carried
        if args:
            args = (carried(args[0]), *args[1:])
        elif "func" in kwargs:
            kwargs["func"] = carried(kwargs["func"])
        return original(self, *args, **kwargs)

    return method


def _carried(function: Any) -> Any:
    """`function`, to be called in the present scope in another process."""
    with faults.guard("propagation"):
        text = _text_of(carried_scope())
        if text is not None and callable(function):
            return _TaskByText(function, text)
    return function


def _carried_by_thread(function: Any) -> Any:
    scope = carried_scope()
    return (
        function if scope is None or not callable(function) else functools.partial(call_in, scope, function)
    )


def _text_of(scope: Scope | None) -> str | None:
    if scope is None:
        return None
    settings = settings_for(scope, private=True)
    return None if settings is None else encode(scope, settings)


class _TaskByText:
    """A function that is called in the scope of a text, which has secrets in it and is never shown."""

    def __init__(self, function: Callable[..., Any], text: str) -> None:
        self._function = function
        self._text = text

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scope = None
        with faults.guard("propagation"):
            scope = scope_of_program(self._text)
        if scope is None:
            return self._function(*args, **kwargs)
        return call_in(scope, self._function, *args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._function)
