"""The rules: what each one looks for in an episode. Every occurrence is a finding, at the call that caused it.

A call is judged by the choice that the agent went on from; calls that gave no answer are no actions of the policy.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.air.causes import Requests, find_replies, read_arguments, requested_tools
from lightning_sdk.mdp.episode import Episode, ToolEvent, Transition
from lightning_sdk.mdp.messages import answer_of, digest_message

# Nothing that the agent went on from.
_NO_ACTION: Final = frozenset(
    {"superseded_retry", "error", "cancelled", "unreadable", "unused_choice", "ambiguous_choice"}
)
_SAYING: Final = ("content", "tool_calls", "function_call", "refusal", "audio")


@dataclass(frozen=True, slots=True)
class Finding:
    """One occurrence: the call that caused it (None: nobody knows which), and what was seen, in a few words."""

    call_id: str | None
    choice: int = 0
    seen: str = ""


class Rule(Protocol):
    """A named rule. Each finding is worth `weight`, in the component `air.<name>`."""

    @property
    def name(self) -> str:
        """Of the component, without "air."."""

    @property
    def weight(self) -> float:
        """What one finding is worth; below 0 to discourage it."""

    def find(self, episode: Episode) -> Iterable[Finding]:
        """All that the rule finds in one episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighted:
    name: str
    weight: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"the name of an AIR rule is {self.name!r}; give a string that is not empty")
        number = isinstance(self.weight, int | float) and not isinstance(self.weight, bool)
        if not number or not math.isfinite(self.weight):
            raise ConfigError(
                f"the weight of the AIR rule {self.name!r} is {self.weight!r}; give a finite number"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolError(_Weighted):
    """A traced tool raised. `tools`: names by a shell's patterns, alternatives with `|`; None for all."""

    name: str = "tool_error"
    tools: str | None = None

    def find(self, episode: Episode) -> Iterator[Finding]:
        """One for each execution that ended with an error."""
        requests = Requests(_actions(episode), episode.scopes)
        for tool in _chosen(episode, self.tools):
            if tool.outcome == "error":
                yield _caused(requests, tool, f"tool {tool.name} raised {tool.error or 'an error'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlError(_Weighted):
    """A traced tool raised, or answered with, a database's complaint about SQL (SQLite, PostgreSQL, MySQL, ODBC ...).

    `tools`: as in `ToolError`. A tool that raised one is found by `ToolError` as well.
    """

    name: str = "sql_error"
    tools: str | None = None

    def find(self, episode: Episode) -> Iterator[Finding]:
        """One for each execution."""
        requests = Requests(_actions(episode), episode.scopes)
        for tool in _chosen(episode, self.tools):
            said = tool.error if tool.outcome == "error" else _complaint(tool.result)
            found = said and _SQL_ERROR.search(said)
            if found:
                yield _caused(requests, tool, f"tool {tool.name}: {found[0]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidArguments(_Weighted):
    """A call asked for a tool that it was not offered, or gave no JSON object with the required arguments."""

    name: str = "invalid_arguments"

    def find(self, episode: Episode) -> Iterator[Finding]:
        """One for each request for a tool."""
        for action in _actions(episode):
            offered = _offered_tools(action)
            for name, arguments in requested_tools(action):
                wrong = _what_is_wrong(name, arguments, offered)
                if wrong:
                    yield Finding(action.call_id, action.choice, f"tool {name or '?'}: {wrong}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnparsableOutput(_Weighted):
    """A response format asked for JSON, and the answer is none (of a `json_object`: no object)."""

    name: str = "unparsable_output"

    def find(self, episode: Episode) -> Iterator[Finding]:
        """One for each answer. One that asks for a tool instead, or refuses, is fine."""
        for action in _actions(episode):
            wanted = action.observation.get("response_format")
            kind = wanted.get("type") if isinstance(wanted, Mapping) else None
            message = answer_of(action)
            if kind not in ("json_object", "json_schema") or message is None:
                continue
            if message.get("tool_calls") or message.get("refusal"):
                continue
            parsed = read_arguments(message.get("content") or "")
            if parsed is None or (kind == "json_object" and not isinstance(parsed[0], dict)):
                yield Finding(action.call_id, action.choice, f"the answer to {kind} is none")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedAction(_Weighted):
    """The same answer as one of the agent's `within` answers before, in the same invocation: tools and text alike."""

    name: str = "repeated_action"
    within: int = 1

    def __post_init__(self) -> None:
        """Refuse what would find nothing."""
        # Not super(): a dataclass with slots is another class than the one in which this was written.
        _Weighted.__post_init__(self)
        if type(self.within) is not int or self.within < 1:
            raise ConfigError(f"within is {self.within!r} for the AIR rule {self.name!r}; give at least 1")

    def find(self, episode: Episode) -> Iterator[Finding]:
        """One for each repetition."""
        before: dict[tuple[str | None, str | None], list[bytes]] = defaultdict(list)
        for action in _actions(episode):
            message = answer_of(action)
            if message is None or _is_empty(message):
                continue
            recent = before[action.agent, action.invocation_id]
            said = _what_was_done(message)
            if said in recent[-self.within :]:
                yield Finding(action.call_id, action.choice, "the same as before")
            recent.append(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyAnswer(_Weighted):
    """A call answered with neither text nor a request for a tool."""

    name: str = "empty_answer"

    def find(self, episode: Episode) -> Iterator[Finding]:
        """One for each answer."""
        for action in _actions(episode):
            message = answer_of(action)
            if message is not None and _is_empty(message):
                yield Finding(action.call_id, action.choice, "nothing was answered")


# Names that frameworks give the tools by which one agent hands over to another.
HANDOFF_TOOLS: Final = "transfer_to_*|transfer_back_to_*|handoff*|hand_off*|delegate_to_*"
# How they say that nobody took over: no such agent, one at a time, not allowed.
REFUSAL: Final = (
    r"refus|reject|declin|denied|unavailable|ignoring this|not a valid tool|unknown agent|no such agent"
    r"|(not|isn't|aren't|n't be) (allowed|permitted|available|found|accepted|possible)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedHandoff(_Weighted):
    """An agent asked for a hand-off to another one, and was refused: the tool raised, or answered with a refusal.

    The answer is that of the traced tool, or the tool's message in a later request of the rollout.

    Attributes:
        tools: names of the tools that hand off, as in `ToolError`.
        refusal: a regular expression that a refusal has in it, whatever the case. An answer of more than 1,000
            characters is no refusal but what the other agent said.
    """

    name: str = "refused_handoff"
    tools: str = HANDOFF_TOOLS
    refusal: str = REFUSAL

    def __post_init__(self) -> None:
        """Refuse an expression that cannot be used."""
        _Weighted.__post_init__(self)
        try:
            re.compile(self.refusal)
        except (re.error, TypeError) as error:
            raise ConfigError(
                f"refusal is {self.refusal!r} for the AIR rule {self.name!r}, no regular expression ({error})"
            ) from None

    def find(self, episode: Episode) -> Iterator[Finding]:
        """One for each hand-off, whether it was seen as a tool, in a message or both ways."""
        refusal = re.compile(self.refusal, re.IGNORECASE)
        actions = _actions(episode)
        requests = Requests(actions, episode.scopes)
        traced: Counter[tuple[str | None, str]] = Counter()
        for tool in _chosen(episode, self.tools):
            said = tool.error or "an error" if tool.outcome == "error" else _complaint(tool.result)
            if said and (tool.outcome == "error" or refusal.search(said)):
                found = _caused(requests, tool, f"hand-off {tool.name}: {said}")
                traced[found.call_id, tool.name] += 1
                yield found
        for reply in find_replies(actions, episode.transitions, lambda name: _matches(name, self.tools)):
            said = _complaint(reply.said)
            if not said or not refusal.search(said):
                continue
            key = (reply.action.call_id, reply.tool)
            traced[key] -= 1
            if traced[key] < 0:
                yield Finding(key[0], reply.action.choice, f"hand-off {reply.tool}: {said}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(_Weighted):
    """A function of the user's, from an episode to findings."""

    function: Callable[[Episode], Iterable[Finding]]

    def find(self, episode: Episode) -> Iterable[Finding]:
        """What the function finds."""
        return self.function(episode)


_SQL_ERROR: Final = re.compile(
    r"""sqlite3\.\w+Error | psycopg2?\.errors\.\w+ | \bno\ such\ (table|column)\b | near\ "[^"]*":\ syntax\ error
    | \bsyntax\ error\ at\ or\ near\b | \b(relation|column)\ "[^"]*"(\ of\ relation\ "[^"]*")?\ does\ not\ exist\b
    | \berror\ in\ your\ SQL\ syntax\b | \bUnknown\ column\ '[^']*' | \bSQLSTATE\b | \bORA-\d{5}\b
    | \bambiguous\ column\ name\b | \bno\ such\ function\b | \bParser\ Error:""",
    re.IGNORECASE | re.VERBOSE,
)
# An error that a tool answers with is short. A result that is longer is data, which may well speak of errors.
_COMPLAINT_CHARACTERS: Final = 1000


def _actions(episode: Episode) -> list[Transition]:
    return [
        each for each in episode.transitions if each.action is not None and each.drop_reason not in _NO_ACTION
    ]


def _chosen(episode: Episode, pattern: str | None) -> Iterator[ToolEvent]:
    for tool in episode.tools:
        if pattern is None or _matches(tool.name, pattern):
            yield tool


def _matches(name: str, pattern: str) -> bool:
    return any(fnmatchcase(name, each.strip()) for each in pattern.split("|"))


def _caused(requests: Requests, tool: ToolEvent, seen: str) -> Finding:
    cause = requests.cause_of(tool)
    return Finding(None, 0, seen) if cause is None else Finding(cause.call_id, cause.choice, seen)


def _complaint(result: Any) -> str | None:
    """What a tool's result says, if it may be an error: text, or an object's `error`."""
    said = result.get("error") if isinstance(result, Mapping) else result
    return said if isinstance(said, str) and len(said) <= _COMPLAINT_CHARACTERS else None


def _offered_tools(action: Transition) -> Mapping[str, Any] | None:
    """The parameters of the tools that a call was offered, by name; None where they cannot be read."""
    tools = action.observation.get("tools")
    if not isinstance(tools, list):
        return None
    offered = {}
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return None
        offered[function["name"]] = function.get("parameters")
    return offered


def _what_is_wrong(name: str, arguments: Any, offered: Mapping[str, Any] | None) -> str | None:
    parsed = read_arguments(arguments)
    if parsed is None or not isinstance(parsed[0], dict):
        return "the arguments are no JSON object"
    if offered is None:
        return None
    if name not in offered:
        return "there is no such tool"
    parameters = offered[name]
    required = parameters.get("required") if isinstance(parameters, Mapping) else None
    if not isinstance(required, list):
        return None
    missing = [each for each in required if isinstance(each, str) and each not in parsed[0]]
    return f"{missing[0]!r} is missing" if missing else None


def _is_empty(message: Mapping[str, Any]) -> bool:
    said = [message.get(key) for key in _SAYING]
    return not any(each.strip() if isinstance(each, str) else each for each in said)


def _what_was_done(message: Mapping[str, Any]) -> bytes:
    """A digest of an answer without what is new in each: the ids of its requests."""
    asked = message.get("tool_calls")
    said = {key: message[key] for key in _SAYING if key in message}
    if isinstance(asked, list):
        said["tool_calls"] = [
            {key: value for key, value in each.items() if key != "id"} if isinstance(each, Mapping) else each
            for each in asked
        ]
    return digest_message(said, reasoning=False)
