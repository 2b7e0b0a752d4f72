"""Messages compared by what they say, for where no token ids are known.

What a client sends back of an answer is rarely the very object that the server sent: nulls and empty lists are
gone, arguments of tools are written anew, text may come as a list of parts. Such differences are none here.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol

from lightning_sdk.mdp.episode import Transition

# Fields of an answer in which servers put what was thought before it; most clients do not send them back.
REASONING_FIELDS: Final = frozenset({"reasoning", "reasoning_content", "reasoning_details"})
_DIGEST_BYTES: Final = 16
# What goes into a prompt beside the messages.
_BESIDE_MESSAGES: Final = ("tools", "chat_template_kwargs")
# As many conversations as may take turns before their beginnings are digested anew.
_REMEMBERED: Final = 8


def digest_message(message: Mapping[str, Any], *, reasoning: bool) -> bytes:
    """What a message says, in 16 bytes; two that say the same have the same.

    Args:
        message: of an observation or an action.
        reasoning: whether the reasoning fields count.
    """
    said = {
        key: _canonical_field(key, value)
        for key, value in message.items()
        if _says(value) and (reasoning or key not in REASONING_FIELDS)
    }
    return _digest(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())


class Observed(Protocol):
    """What has an observation: a transition, or what will be one."""

    @property
    def observation(self) -> Mapping[str, Any]: ...


def digest_histories(transition: Observed, *, reasoning: bool) -> list[bytes]:
    """Digests of the first 0, 1, 2 ... messages of a transition's observation, one after the other.

    With `reasoning` they also tell apart what else goes into the prompt (tools, the template's arguments), so
    that equal digests mean equal prompts.
    """
    return HistoryDigester(reasoning=reasoning).digest(transition)


class HistoryDigester:
    """`digest_histories` of one call after another; what begins as a recent one does is not digested again."""

    def __init__(self, *, reasoning: bool) -> None:
        """As for `digest_histories`."""
        self._reasoning = reasoning
        self._recent: deque[tuple[list[Any], Sequence[Mapping[str, Any]], list[bytes]]] = deque(
            maxlen=_REMEMBERED
        )

    def digest(self, transition: Observed) -> list[bytes]:
        """The digests of one."""
        beside: list[Any] = []
        if self._reasoning:
            beside = [transition.observation.get(key) or None for key in _BESIDE_MESSAGES]
        messages = messages_of(transition)
        histories: list[bytes] = []
        for known_beside, known_messages, known in self._recent:
            if known_beside == beside:
                same = _count_same(known_messages, messages)
                if same >= len(histories):
                    histories = known[: same + 1]
        if not histories:
            histories = [_digest(json.dumps(beside, sort_keys=True).encode() if beside else b"")]
        for message in messages[len(histories) - 1 :]:
            histories.append(extend_history(histories[-1], message, reasoning=self._reasoning))
        self._recent.appendleft((beside, messages, histories))
        return histories


def _count_same(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> int:
    """How many messages two lists have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def extend_history(history: bytes, message: Mapping[str, Any], *, reasoning: bool) -> bytes:
    """The digest of a history and one more message."""
    return _digest(history + digest_message(message, reasoning=reasoning))


def messages_of(transition: Observed) -> Sequence[Mapping[str, Any]]:
    """The messages of a transition's observation; none where they are not what they should be."""
    messages = transition.observation.get("messages")
    if isinstance(messages, list) and all(isinstance(message, Mapping) for message in messages):
        return messages
    return ()


def answer_of(transition: Transition) -> Mapping[str, Any] | None:
    """The message of a transition's action."""
    message = None if transition.action is None else transition.action.get("message")
    return message if isinstance(message, Mapping) else None


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _says(value: Any) -> bool:
    return value is not None and value != "" and value != [] and value != {}


def _canonical_field(key: str, value: Any) -> Any:
    if key == "content" and isinstance(value, list):
        return _joined_text(value)
    if key == "tool_calls" and isinstance(value, list):
        return [_canonical_tool_call(item) if isinstance(item, Mapping) else item for item in value]
    return value


def _joined_text(parts: list[Any]) -> Any:
    """The text of a content that is all text."""
    pieces = []
    for part in parts:
        if not isinstance(part, Mapping) or set(part) != {"type", "text"} or part["type"] != "text":
            return parts
        pieces.append(str(part["text"]))
    return "".join(pieces)


def _canonical_tool_call(tool_call: Mapping[str, Any]) -> dict[str, Any]:
    said = {key: value for key, value in tool_call.items() if key not in ("index", "type") and _says(value)}
    function = said.get("function")
    if isinstance(function, Mapping):
        said["function"] = {**function, "arguments": _canonical_arguments(function.get("arguments"))}
    return said


def _canonical_arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return [json.loads(arguments)]
    except (ValueError, RecursionError):
        return arguments
