"""Why a prompt does not start with the prompt and response that its messages go on from.

- "retokenised": the messages are the same, and within the response other ids stand for the text.
- "template": the messages are the same, and what differs was put in or left out whole: the sampled end token,
  the reasoning before an answer, something in the rendering of what came before.
- "edited_history": the messages are not the same: an answer was rewritten, turns were left out, the tools are
  others.

Without the tokenizer the first two are told apart by how the ids differ, so this is a diagnosis, on which
nothing that is trained depends.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from lightning_sdk.mdp.episode import Transition
from lightning_sdk.mdp.messages import (
    REASONING_FIELDS,
    answer_of,
    digest_histories,
    digest_message,
    extend_history,
    messages_of,
)

Break = Literal["template", "retokenised", "edited_history"]

_ID_BYTES: Final = 4


def find_breaks(
    transitions: Sequence[Transition], nodes: Sequence[int], parents: Sequence[int | None]
) -> list[Break | None]:
    """For each transition why it does not extend what its messages go on from; None where nothing is broken.

    Args:
        transitions: of one rollout.
        nodes: positions of those with token ids, in call order, then by choice.
        parents: what each extends by token ids.
    """
    breaks: list[Break | None] = [None] * len(transitions)
    suspects = {at for at in nodes if _holds_more(transitions[at], _parent(transitions, parents, at))}
    # A rollout of unbroken chains, as most are, needs no closer look at its messages.
    if not suspects:
        return breaks
    past = _Past()
    step = None
    waiting: list[int] = []
    for at in nodes:
        each = transitions[at]
        if each.step != step:
            for earlier in waiting:
                past.add(transitions[earlier], earlier)
            waiting, step = [], each.step
        waiting.append(at)
        if at in suspects:
            breaks[at] = past.judge(transitions, each, _parent(transitions, parents, at))
    return breaks


def _parent(transitions: Sequence[Transition], parents: Sequence[int | None], at: int) -> Transition | None:
    parent = parents[at]
    return None if parent is None else transitions[parent]


def _holds_more(transition: Transition, parent: Transition | None) -> bool:
    """Whether a prompt holds answers that its parent does not account for."""
    beyond = messages_of(transition)[_known_messages(parent) :]
    return any(message.get("role") == "assistant" for message in beyond)


def _known_messages(parent: Transition | None) -> int:
    """How many messages of a prompt its parent accounts for: its own, and its answer."""
    return 0 if parent is None else len(messages_of(parent)) + 1


class _Past:
    """The earlier calls of a rollout, by what their messages say; reasoning does not count."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str | None, bytes], int] = {}
        self._prompts: set[tuple[str | None, bytes]] = set()
        self._answers: dict[str | None, set[bytes]] = defaultdict(set)

    def add(self, transition: Transition, at: int) -> None:
        answer = answer_of(transition)
        if answer is None:
            return
        key = transition.policy or transition.model
        history = digest_histories(transition, reasoning=False)[-1]
        self._prompts.add((key, history))
        self._ends[key, extend_history(history, answer, reasoning=False)] = at
        self._answers[key].add(digest_message(answer, reasoning=False))

    def judge(
        self, transitions: Sequence[Transition], transition: Transition, parent: Transition | None
    ) -> Break | None:
        key = transition.policy or transition.model
        messages = messages_of(transition)
        histories = digest_histories(transition, reasoning=False)
        known = _known_messages(parent)
        for length in range(len(messages), known, -1):
            found = self._ends.get((key, histories[length]))
            if found is not None:
                return _compare(transitions[found], transition, messages[length - 1])
        for at in range(known, len(messages)):
            if messages[at].get("role") != "assistant":
                continue
            # An answer that was given, after something else; or after what was asked, another answer.
            answers = self._answers[key]
            if (
                digest_message(messages[at], reasoning=False) in answers
                or (key, histories[at]) in self._prompts
            ):
                return "edited_history"
        return None


def _compare(earlier: Transition, later: Transition, copy: Mapping[str, Any]) -> Break:
    """Why `later` does not start with `earlier`, whose messages and answer (in it as `copy`) it begins with."""
    if (earlier.observation.get("tools") or None) != (later.observation.get("tools") or None):
        return "edited_history"
    answer = answer_of(earlier) or {}
    if any(answer.get(field) and not copy.get(field) for field in REASONING_FIELDS):
        return "template"
    prompt, response = _packed(earlier.prompt_token_ids), _packed(earlier.response_token_ids)
    later_prompt = _packed(later.prompt_token_ids)
    same = _common_bytes(prompt + response, later_prompt)
    if same < len(prompt):
        return "template"
    sampled, rendered = response[same - len(prompt) :], later_prompt[same:]
    ended = earlier.action is not None and earlier.action.get("finish_reason") != "length"
    if not rendered or (ended and len(sampled) == _ID_BYTES):
        return "template"
    return "template" if _left_out(sampled, rendered) or _put_in(sampled, rendered) else "retokenised"


def _left_out(sampled: bytes, rendered: bytes) -> bool:
    """Whether the prompt goes on with the end of the response (perhaps without its last token)."""
    first = rendered[:_ID_BYTES]
    at = sampled.find(first)
    while at != -1:
        rest = sampled[at:]
        if at % _ID_BYTES == 0 and rendered.startswith((rest, rest[:-_ID_BYTES] or rest)):
            return True
        at = sampled.find(first, at + 1)
    return False


def _put_in(sampled: bytes, rendered: bytes) -> bool:
    """Whether the prompt has the rest of the response (perhaps without its last token) only further on."""
    wanted = sampled[:-_ID_BYTES] or sampled
    at = rendered.find(wanted)
    while at % _ID_BYTES and at != -1:
        at = rendered.find(wanted, at + 1)
    return at != -1


def _packed(token_ids: Sequence[int] | None) -> bytes:
    return array("i", token_ids or ()).tobytes()


def _common_bytes(one: bytes, other: bytes) -> int:
    """How many bytes of whole ids two packed sequences have in common at their beginning."""
    low, high = 0, min(len(one), len(other)) // _ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * _ID_BYTES : middle * _ID_BYTES] == other[low * _ID_BYTES : middle * _ID_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low * _ID_BYTES
