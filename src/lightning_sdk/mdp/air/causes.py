"""Which call caused the execution of a tool, as far as can be told: frameworks run tools without a word on why."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.episode import ScopeSpan, ToolEvent, Transition
from lightning_sdk.mdp.json_text import parse_json
from lightning_sdk.mdp.messages import answer_of, messages_of


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


@dataclass(frozen=True, slots=True)
class Reply:
    """What a tool answered, as a later request tells it."""

    action: Transition
    tool: str
    said: str


def find_replies(
    actions: Iterable[Transition], transitions: Iterable[Transition], is_wanted: Callable[[str], bool]
) -> Iterator[Reply]:
    """For each tool that an action asked for by an id the answer in the first later request that has one.

    That is a message with the id behind what the action was asked; or, where the messages are others by now (another
    agent's instructions), anywhere, if the action had not seen the id before: some servers repeat them.

    Args:
        actions: which may have asked.
        transitions: of the rollout, in call order.
        is_wanted: whether a tool of this name is looked for.
    """
    asked = [
        (action, name, tool) for action in actions for name, tool in _requested_ids(action) if is_wanted(tool)
    ]
    if not asked:
        return
    told: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for each in transitions:
        for at, message in enumerate(messages_of(each)):
            if message.get("role") == "tool" and isinstance(message.get("tool_call_id"), str):
                told[message["tool_call_id"]].append((each.step, at, _text_of(message.get("content"))))
    for action, name, tool in asked:
        places = told[name]
        is_old = any(message.get("tool_call_id") == name for message in messages_of(action))
        for _, at, said in places[bisect_right(places, action.step, key=lambda place: place[0]) :]:
            if at > len(messages_of(action)) or not is_old:
                yield Reply(action, tool, said)
                break


def _requested_ids(action: Transition) -> Iterator[tuple[str, str]]:
    """Id and name of each tool that an answer asks for by an id."""
    asked = (answer_of(action) or {}).get("tool_calls")
    for each in asked if isinstance(asked, list) else ():
        function = each.get("function") if isinstance(each, Mapping) else None
        if isinstance(function, Mapping) and isinstance(each.get("id"), str):
            yield each["id"], str(function.get("name") or "")


def _text_of(content: Any) -> str:
    """The text of a message's content, which may be in parts."""
    parts = content if isinstance(content, list) else [content]
    texts = [each.get("text") if isinstance(each, Mapping) else each for each in parts]
    return "".join(each for each in texts if isinstance(each, str))


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
