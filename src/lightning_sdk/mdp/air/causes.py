"""Which call caused the execution of a tool, as far as can be told: frameworks run tools without a word on why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.episode import ScopeSpan, ToolEvent, Transition
from lightning_sdk.mdp.json_text import parse_json
from lightning_sdk.mdp.messages import answer_of


class Requests:
    """The actions of an episode, to be asked what caused what."""

    def __init__(self, actions: Sequence[Transition], scopes: Sequence[ScopeSpan]) -> None:
        self._actions = sorted(actions, key=lambda each: each.end_ns)
        self._requested = [list(requested_tools(each)) for each in self._actions]
        self._parents = {scope.scope_id: scope.parent_scope_id for scope in scopes}

    def cause_of(self, tool: ToolEvent) -> Transition | None:
        """The latest action, over when the tool began, that asked for it with these arguments; else by its name.

        Where none did (an agent that reads its model's text itself) the latest in the tool's scope, or in the
        innermost around it that has one; else the latest. None where there is none before. The clocks of different
        machines are taken as they are.
        """
        before = [at for at, each in enumerate(self._actions) if each.end_ns <= tool.start_ns]
        if not before:
            return None
        by_name = by_scope = None
        enclosing = self._depths(tool.scope_id)
        for at in reversed(before):
            for name, arguments in self._requested[at]:
                if name == tool.name:
                    parsed = read_arguments(arguments)
                    if parsed is not None and parsed[0] == tool.arguments:
                        return self._actions[at]
                    by_name = at if by_name is None else by_name
            depth = enclosing.get(self._actions[at].invocation_id)
            if depth is not None and (by_scope is None or depth < by_scope[0]):
                by_scope = (depth, at)
        if by_name is not None:
            return self._actions[by_name]
        return self._actions[before[-1] if by_scope is None else by_scope[1]]

    def _depths(self, scope_id: str | None) -> dict[str | None, int]:
        """A scope and those around it, by how far out they are."""
        depths: dict[str | None, int] = {}
        while scope_id and scope_id not in depths:
            depths[scope_id] = len(depths)
            scope_id = self._parents.get(scope_id)
        return depths


def requested_tools(action: Transition) -> Iterator[tuple[str, Any]]:
    """Name and arguments, as they were written, of each function that an answer asks for."""
    message = answer_of(action) or {}
    asked = message.get("tool_calls")
    functions = (
        [each.get("function") for each in asked if isinstance(each, Mapping)]
        if isinstance(asked, list)
        else []
    )
    for function in (*functions, message.get("function_call")):
        if isinstance(function, Mapping):
            yield str(function.get("name") or ""), function.get("arguments")


def read_arguments(arguments: Any) -> tuple[Any] | None:
    """The value that JSON text says, alone in a tuple; None where it says none. What is no text is the value."""
    if not isinstance(arguments, str):
        return (arguments,)
    try:
        return (parse_json(arguments.encode("utf-8", "replace")),)
    except WireError:
        return None
