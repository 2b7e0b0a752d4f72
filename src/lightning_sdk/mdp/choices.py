"""What became of each choice: which call went on from it and, with several, whether the agent used it."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Literal, Protocol

from lightning_sdk.mdp.prefixes import PrefixIndex

Use = Literal["used", "unused", "unknown"]
# Position of a call in the rollout's call order, and index of a choice of it.
ChoiceAt = tuple[int, int]


class SampledChoice(Protocol):
    """One choice, as far as its ids go."""

    @property
    def index(self) -> int: ...
    @property
    def token_ids(self) -> Sequence[int] | None: ...


class SampledCall(Protocol):
    """One call, as far as its ids go: a `CallView`, or what is left of one."""

    @property
    def policy(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def prompt_token_ids(self) -> Sequence[int] | None: ...
    @property
    def choices(self) -> Sequence[SampledChoice]: ...


def find_parents(calls: Sequence[SampledCall]) -> list[ChoiceAt | None]:
    """For each call the earlier choice whose prompt and response its prompt extends, by exact token ids.

    The longest wins; of equally long ones the latest call, and the lowest index within it. Only calls of the
    same policy (or, where none is known, model) and with checked ids take part.

    Args:
        calls: in call order.
    """
    indices: dict[str | None, PrefixIndex[ChoiceAt]] = defaultdict(PrefixIndex)
    parents: list[ChoiceAt | None] = []
    for at, call in enumerate(calls):
        if call.prompt_token_ids is None:
            parents.append(None)
            continue
        index = indices[call.policy or call.model]
        prompt = _packed(call.prompt_token_ids)
        parents.append(index.find(prompt))
        for choice in reversed(call.choices):
            if choice.token_ids:
                index.add(prompt + _packed(choice.token_ids), (at, choice.index))
    return parents


def find_uses(
    calls: Sequence[SampledCall], parents: Sequence[ChoiceAt | None], rewarded: Collection[ChoiceAt]
) -> dict[ChoiceAt, Use]:
    """Whether each choice of each call was used.

    The only choice of a call was. One of several was if a later call extends it or a reward names it. Any
    other was not, if the ids of its call and of all later ones are known; else nobody can tell.

    Args:
        calls: in call order.
        parents: what `find_parents` found.
        rewarded: choices that a reward names.
    """
    used = {parent for parent in parents if parent is not None}.union(rewarded)
    uses: dict[ChoiceAt, Use] = {}
    known = True
    for at in range(len(calls) - 1, -1, -1):
        known = known and calls[at].prompt_token_ids is not None
        choices = calls[at].choices
        for choice in choices:
            if len(choices) == 1 or (at, choice.index) in used:
                uses[at, choice.index] = "used"
            else:
                uses[at, choice.index] = "unused" if known else "unknown"
    return uses


def _packed(token_ids: Sequence[int]) -> bytes:
    if not (isinstance(token_ids, array) and token_ids.typecode == "i"):
        token_ids = array("i", token_ids)
    return token_ids.tobytes()
