"""What a call goes on from where no token ids are known: the messages and answer that its messages begin with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_sdk.mdp.choices import ChoiceAt
from lightning_sdk.mdp.messages import HistoryDigester, extend_history, messages_of


@dataclass(frozen=True, slots=True)
class SaidCall:
    """One call, as far as its messages go.

    Attributes:
        key: its policy, or where none is known its model; only calls with the same one go on from each other.
        observation: as that of a transition.
        answers: index and message of each choice.
    """

    key: str | None
    observation: Mapping[str, Any]
    answers: Sequence[tuple[int, Mapping[str, Any]]]


def find_message_parents(calls: Iterable[SaidCall]) -> list[ChoiceAt | None]:
    """For each call the earlier choice whose messages and answer its messages begin with.

    The longest wins; of equally long ones the latest call, and the lowest index within it. Reasoning, tools and the
    template's arguments must be the same too.

    Args:
        calls: in call order.
    """
    ends: dict[tuple[str | None, bytes], ChoiceAt] = {}
    digester = HistoryDigester(reasoning=True)
    parents: list[ChoiceAt | None] = []
    for at, call in enumerate(calls):
        if not messages_of(call):
            parents.append(None)
            continue
        histories = digester.digest(call)
        key = call.key
        parents.append(next((ends[key, each] for each in reversed(histories) if (key, each) in ends), None))
        for index, answer in reversed(call.answers):
            ends[key, extend_history(histories[-1], answer, reasoning=True)] = (at, index)
    return parents
