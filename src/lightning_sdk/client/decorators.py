"""`trace_agent` and `trace_tool`: decorators for every kind of callable, bare or with arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from lightning_sdk.client import faults
from lightning_sdk.client.loading import load_client
from lightning_sdk.client.scope import get_current, set_current
from lightning_sdk.errors import ConfigError
from lightning_sdk.ids import fitted, unfit

if TYPE_CHECKING:
    from lightning_sdk.client.execution import Execution

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

# Makes the execution of one call, from (wrapped, instance, args, kwargs).
_NewExecution = Callable[[Callable[..., Any], Any, "tuple[Any, ...]", "Mapping[str, Any]"], "Execution"]


class Decorator(Protocol):
    """A decorator that keeps the type of what it decorates."""

    def __call__(self, target: F, /) -> F: ...


@overload
def trace_agent(target: F, /) -> F: ...
@overload
def trace_agent(name: str, /) -> Decorator: ...
@overload
def trace_agent(*, name: str | None = None) -> Decorator: ...
def trace_agent(target: Any = None, /, *, name: str | None = None) -> Any:
    """Make each execution of a callable an invocation of an agent, and the outermost one a rollout.

    Works as `@trace_agent`, `@trace_agent("planner")` and `@trace_agent(name="planner")`, on functions,
    methods, static and class methods (above or below their own decorator), coroutine functions, generators,
    async generators and instances that can be called. What is decorated keeps its signature, name and type,
    and behaves as before: results, exceptions and cancellation pass unchanged.

    Args:
        target: what to decorate, or the agent's name.
        name: the agent's name. Default: the qualified name of the callable.

    Raises:
        ConfigError: the name is empty, or the target is nothing that can be traced.
    """
    return _decorator("trace_agent", _trace_agent, target, name)


@overload
def trace_tool(target: F, /) -> F: ...
@overload
def trace_tool(name: str, /) -> Decorator: ...
@overload
def trace_tool(*, name: str | None = None) -> Decorator: ...
def trace_tool(target: Any = None, /, *, name: str | None = None) -> Any:
    """Record each execution of a callable inside a rollout as a tool call, with its arguments and its result.

    Decorates what `trace_agent` does, in the same ways. Of a generator the return value is the result; of an
    async generator nothing is. What JSON cannot say is recorded as its repr.

    Args:
        target: what to decorate, or the tool's name.
        name: the tool's name. Default: the qualified name of the callable.

    Raises:
        ConfigError: the name is empty, or the target is nothing that can be traced.
    """
    return _decorator("trace_tool", _trace_tool, target, name)


def _decorator(said: str, trace: Callable[[F, str], F], target: Any, name: str | None) -> Any:
    if isinstance(target, str):
        if name is not None:
            raise ConfigError(f"{said}({target!r}, name={name!r}) has two names: give one")
        target, name = None, target
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise ConfigError(f"{said}(name={name!r}): expected a name that is not empty")
    if name is not None and (reason := unfit(name)):
        raise ConfigError(f"{said}(name={name[:80]!a}) {reason}")

    def decorate(target: F) -> F:
        inner = (
            getattr(target, "__func__", target) if isinstance(target, staticmethod | classmethod) else target
        )
        if isinstance(target, type) or not callable(inner):
            raise ConfigError(
                f"{said} cannot decorate {target!r}: expected a function, a method or a callable instance"
            )
        return trace(target, name or _default_name(inner))

    return decorate if target is None else decorate(target)


def _default_name(target: Callable[..., Any]) -> str:
    function = getattr(target, "func", target) if not hasattr(target, "__qualname__") else target
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str):
        name = type(target).__qualname__
    return fitted(name.rpartition("<locals>.")[2])


def _trace_agent(target: F, name: str) -> F:
    def new_execution(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Execution:
        from lightning_sdk.client.execution import AgentExecution

        return AgentExecution(name)

    return _wrap(target, new_execution)


def _trace_tool(target: F, name: str) -> F:
    # Names of the positional parameters, by whether the callable is bound; found at the first call.
    parameters: dict[bool, tuple[str, ...]] = {}

    def new_execution(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Execution:
        from lightning_sdk.client.execution import ToolExecution

        is_bound = instance is not None
        names = parameters.get(is_bound)
        if names is None:
            names = parameters[is_bound] = _positional_parameters(wrapped)
        return ToolExecution(name, _named_arguments(names, args, kwargs))

    return _wrap(target, new_execution)


def _positional_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        faults.pass_on(error)
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


def _named_arguments(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments by parameter; positional ones without a parameter of their own are under "args"."""
    named = dict(zip(names, args, strict=False))
    if len(args) > len(names):
        named["args"] = list(args[len(names) :])
    return {**named, **kwargs}


def _wrap(target: F, new_execution: _NewExecution) -> F:
    from lightning_sdk.client.wrapping import TracedCallable

    if type(target) is FunctionType and _is_class_method_by_name(target):
        target = classmethod(target)  # type: ignore[assignment]
    drive_only = _runs_when_resumed(target)

    def wrapper(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        execution = None
        with faults.guard("trace"):
            load_client()
            from lightning_sdk.client.generators import continuation

            execution = new_execution(wrapped, instance, args, kwargs)
        if execution is None:
            return wrapped(*args, **kwargs)
        if drive_only:
            # The call only binds arguments; the body runs later, and only then anything begins.
            driven = wrapped(*args, **kwargs)
            return continuation(execution, driven) or driven
        before = get_current()
        try:
            execution.start()
            with execution:
                result = wrapped(*args, **kwargs)
        except BaseException as error:
            # It is so already, unless a signal handler raised while we entered or left.
            set_current(before)
            execution.finish_raised(error)
            raise
        later = continuation(execution, result)
        if later is not None:
            return later
        execution.finish_returned(result)
        return result

    return TracedCallable(target, wrapper)  # type: ignore[return-value]


def _is_class_method_by_name(function: FunctionType) -> bool:
    """Whether Python makes a class method of it when the class is made, which it does to plain functions only."""
    around, _, name = function.__qualname__.rpartition(".")
    return (
        name in ("__init_subclass__", "__class_getitem__")
        and around != ""
        and not around.endswith("<locals>")
    )


def _runs_when_resumed(target: Any) -> bool:
    """Whether a call of `target` runs nothing of its body: generators, async generators and coroutines."""
    from lightning_sdk.client.wrapping import TracedCallable

    function = target.__func__ if isinstance(target, staticmethod | classmethod) else target
    # Another wrapper may show the code of what it wraps and do something else.
    if type(function) not in (FunctionType, MethodType, TracedCallable):
        return False
    flags: int = getattr(getattr(function, "__code__", None), "co_flags", 0)
    return bool(flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_COROUTINE)) and not (
        flags & inspect.CO_ITERABLE_COROUTINE
    )
