"""Finding the agent: "module:function", imported from the working directory as uvicorn does."""

from __future__ import annotations

import importlib
import inspect
import operator
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from lightning_sdk.errors import AgentError
from lightning_sdk.rollouts.tasks import AGENT

# What `Result.error_type` says where the agent could not even be imported.
AGENT_ERROR: Final = f"{AgentError.__module__}.{AgentError.__qualname__}"


def load_agent(name: str) -> Callable[[Any], Any]:
    """Import an agent.

    Args:
        name: "module:function"; the function may be an attribute of something, "module:Class.method".

    Raises:
        AgentError: it cannot be imported, or is nothing to call.
    """
    if not AGENT.fullmatch(name):
        raise AgentError(f"{name!r} names no agent: expected module:function, such as my_agent:solve")
    module_name, _, path = name.partition(":")
    import_from_here()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise AgentError(f"{name} cannot be imported: {error}") from error
        raise AgentError(
            f"there is no module {error.name!r} for the agent {name}: run this where {module_name} can be imported"
        ) from None
    except (Exception, SystemExit) as error:
        raise AgentError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        found = operator.attrgetter(path)(found)
    except AttributeError:
        raise AgentError(f"the module {module_name} has no {path!r}, which {name} names") from None
    if not callable(found):
        raise AgentError(f"{name} is a {type(found).__name__}: expected a function of one argument, the task")
    agent: Callable[[Any], Any] = found
    return agent


def is_async(agent: Callable[[Any], Any]) -> bool:
    """Whether calling it gives a coroutine or an asynchronous generator, so that it can share an event loop."""
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (inspect.unwrap(agent), getattr(agent, "func", None), getattr(agent, "__call__", None))  # noqa: B004
    )


def import_from_here() -> None:
    """Let modules of the working directory be imported, as `python -m` does."""
    here = os.getcwd()  # noqa: PTH109 - entries of sys.path are strings
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
