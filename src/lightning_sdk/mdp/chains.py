"""Which calls of a rollout make one sequence: each prompt that starts with an earlier prompt and response.

Where token ids are known they alone decide, exactly; elsewhere the messages do, and the chain is marked so.
Calls that go on from the same one make a tree. What is trained of it is laid out in chains from a root to a
leaf, such that every sampled token is trained in exactly one of them:

    a ── b ── c        chains  [a b c]         all three are trained here
         └─── d                [a b | d]       a and b are context here, d is trained
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lightning_sdk.mdp.breaks import Break, find_breaks
from lightning_sdk.mdp.choices import ChoiceAt, find_parents
from lightning_sdk.mdp.episode import Fidelity, Transition
from lightning_sdk.mdp.message_links import SaidCall, find_message_parents
from lightning_sdk.mdp.messages import answer_of


@dataclass(frozen=True, slots=True)
class Chain:
    """A way from a root to a leaf.

    Attributes:
        nodes: positions of transitions; the prompt of each starts with prompt and response of the one before.
        first_own: `nodes[first_own:]` are trained here; those before it are, in a chain that comes earlier.
        fidelity: whether token ids say so, or only messages.
    """

    nodes: tuple[int, ...]
    first_own: int
    fidelity: Fidelity


@dataclass(frozen=True, slots=True)
class ChainForest:
    """How the transitions of one rollout go on from each other. Positions are those of `transitions`.

    Attributes:
        transitions: as they were given.
        order: positions of those that take part, by call order and, within a call, by choice. The others have
            no response.
        parents: the transition that each extends; None for a root, and for what takes no part.
    """

    transitions: tuple[Transition, ...]
    order: tuple[int, ...]
    parents: tuple[int | None, ...]

    def lay_out(self, trained: Sequence[bool]) -> list[Chain]:
        """Chains that together hold every trained transition in exactly one place.

        Where several go on from one transition, the chain of the first of them (in call order, then by choice)
        that leads to something trained has it as its own. What leads to nothing trained is left out, and what
        takes no part is never trained.

        Args:
            trained: for each of `transitions` whether it is trained on.

        Raises:
            ValueError: not one truth value a transition.
        """
        if len(trained) != len(self.transitions):
            raise ValueError(f"{len(trained)} truth values for {len(self.transitions)} transitions")
        leading = set()
        for at in reversed(self.order):
            if trained[at] or at in leading:
                leading.add(at)
                parent = self.parents[at]
                if parent is not None:
                    leading.add(parent)

        paths: list[list[int]] = []
        first_own: list[int] = []
        path_ending: dict[int, int] = {}
        for at in self.order:
            if at not in leading:
                continue
            parent = self.parents[at]
            ending = None if parent is None else path_ending.pop(parent, None)
            if ending is None:
                path = self._ancestors(at)
                ending = len(paths)
                first_own.append(len(path))
                paths.append(path)
            paths[ending].append(at)
            path_ending[at] = ending
        return [
            Chain(tuple(path), own, self.transitions[path[-1]].fidelity)
            for path, own in zip(paths, first_own, strict=True)
        ]

    def find_breaks(self) -> list[Break | None]:
        """Why a call with token ids does not extend the one that its messages go on from, for each transition.

        None where it does, or where it begins something new or goes another way from what is the same.
        """
        return find_breaks(
            self.transitions,
            [at for at in self.order if self.transitions[at].fidelity == "engine"],
            self.parents,
        )

    def count_breaks(self) -> Mapping[Break, int]:
        """How many calls do not extend the one that they go on from, by why."""
        calls = {self.transitions[at].step: reason for at, reason in enumerate(self.find_breaks()) if reason}
        return Counter(calls.values())

    def _ancestors(self, at: int) -> list[int]:
        path = []
        parent = self.parents[at]
        while parent is not None:
            path.append(parent)
            parent = self.parents[parent]
        path.reverse()
        return path


def build_chains(transitions: Sequence[Transition]) -> ChainForest:
    """Find what extends what among the transitions of one rollout.

    A transition extends the earlier one (by call order) of the same policy, or where none is known of the same
    model, whose prompt and response its prompt starts with: the longest, of equally long ones the latest call
    and its lowest choice. Calls with the same prompt are siblings. The order in which transitions are given
    is nothing.

    Raises:
        ValueError: transitions of more than one rollout or attempt.
    """
    if len({(each.rollout_id, each.attempt) for each in transitions}) > 1:
        raise ValueError("chains are built for the transitions of one attempt of one rollout, not of several")
    order = _find_nodes(transitions)
    parents: list[int | None] = [None] * len(transitions)
    _link_by_tokens(transitions, [at for at in order if transitions[at].fidelity == "engine"], parents)
    _link_by_messages(transitions, [at for at in order if transitions[at].fidelity == "text"], parents)
    return ChainForest(transitions=tuple(transitions), order=tuple(order), parents=tuple(parents))


def _find_nodes(transitions: Sequence[Transition]) -> list[int]:
    """Positions of what was answered, in call order."""
    nodes = [
        at
        for at, each in enumerate(transitions)
        if (each.response_token_ids if each.fidelity == "engine" else answer_of(each) is not None)
    ]
    return sorted(nodes, key=lambda at: (transitions[at].step, transitions[at].choice))


@dataclass(frozen=True, slots=True)
class _Choice:
    index: int
    token_ids: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class _Call:
    policy: str | None
    model: str | None
    prompt_token_ids: Sequence[int] | None
    choices: Sequence[_Choice]


def _link_by_tokens(
    transitions: Sequence[Transition], nodes: Sequence[int], parents: list[int | None]
) -> None:
    by_step: dict[int, list[int]] = defaultdict(list)
    for at in nodes:
        by_step[transitions[at].step].append(at)
    calls = []
    for members in by_step.values():
        head = transitions[members[0]]
        choices = [_Choice(transitions[at].choice, transitions[at].response_token_ids) for at in members]
        calls.append(_Call(head.policy, head.model, head.prompt_token_ids, choices))
    _set_parents(transitions, by_step.values(), find_parents(calls), parents)


def _link_by_messages(
    transitions: Sequence[Transition], nodes: Sequence[int], parents: list[int | None]
) -> None:
    by_step: dict[int, list[int]] = defaultdict(list)
    for at in nodes:
        by_step[transitions[at].step].append(at)
    calls = []
    for members in by_step.values():
        head = transitions[members[0]]
        answers = [(transitions[at].choice, answer_of(transitions[at]) or {}) for at in members]
        calls.append(SaidCall(head.policy or head.model, head.observation, answers))
    _set_parents(transitions, by_step.values(), find_message_parents(calls), parents)


def _set_parents(
    transitions: Sequence[Transition],
    calls: Collection[Sequence[int]],
    found: Sequence[ChoiceAt | None],
    parents: list[int | None],
) -> None:
    """Note for the choices of each call what it extends."""
    place = {(number, transitions[at].choice): at for number, members in enumerate(calls) for at in members}
    for members, parent in zip(calls, found, strict=True):
        if parent is not None:
            for at in members:
                parents[at] = place[parent]
