"""An episode as columns of bytes, and back: what learning needs of it, without reading any record again.

A store keeps the columns of each rollout that is complete, since to lay them out again takes a tenth of the time that
assembly takes. They hold what `assemble` made, so there is no second set of rules; and they begin with the
`fingerprint` of the code that made it: other code does not read them, but assembles the records.

    fingerprint │ length of the head (u32) │ head (JSON) │ token ids (int32) │ log probabilities (float32)

What messages say is left out: an observation or action comes from the records when somebody looks (`late_text`). A
prompt that starts with an earlier prompt and response is kept as what it adds to them, so that a conversation takes
as many bytes as it has tokens, not their square.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import repeat
from typing import Any, Final

import orjson

from lightning_sdk.errors import WireError
from lightning_sdk.mdp.episode import Episode, RewardEvent, ScopeSpan, ToolEvent, Transition
from lightning_sdk.mdp.fingerprint import FINGERPRINT_BYTES, fingerprint
from lightning_sdk.mdp.frozen import quick_maker
from lightning_sdk.mdp.late_text import EpisodeText, LateAction, LateObservation
from lightning_sdk.records import pack_float32, pack_int32, unpack_float32, unpack_int32

_LENGTH_BYTES: Final = 4
# Fields of a transition that are its episode's.
_SHARED: Final = frozenset(
    {"project", "run_id", "group_id", "rollout_id", "task_id", "attempt", "outcome", "split", "metadata"}
)
# Mappings that many transitions share, and what is different for each or must come back to the bit.
_DISTINCT: Final = ("sampling", "reward_components", "reward_scopes")
_LISTED: Final = ("call_id", "choice", "reward", "return_to_go")
_TOKENS: Final = ("prompt_token_ids", "response_token_ids", "response_logprobs")
_TEXT: Final = ("observation", "action")

_FIELDS: Final = tuple(each.name for each in fields(Transition))
_PLAIN: Final = tuple(
    name for name in _FIELDS if name not in {*_SHARED, *_DISTINCT, *_LISTED, *_TOKENS, *_TEXT}
)
_EVENTS: Final = {"scopes": ScopeSpan, "tools": ToolEvent, "rewards": RewardEvent}
_ALL_EPISODE_FIELDS: Final = tuple(each.name for each in fields(Episode))
_EPISODE_FIELDS: Final = tuple(name for name in _ALL_EPISODE_FIELDS if name not in {"transitions", *_EVENTS})
_make_episode = quick_maker(Episode)
_make_transition = quick_maker(Transition)
_event_makers: Final[Mapping[str, Callable[..., Any]]] = {
    name: quick_maker(kind) for name, kind in _EVENTS.items()
}

# What a prompt begins with, where that is not the prompt and response at an earlier position.
_NOTHING: Final = -1
_THE_SAME: Final = -2  # it is the prompt before it, of another choice of the same call
# The length of what is not known.
_UNKNOWN: Final = -1


def encode_episode(episode: Episode) -> bytes | None:
    """The columns of an episode; None for one that holds what JSON cannot say again (half a surrogate pair)."""
    transitions = episode.transitions
    before, prompts = _shorten_prompts(transitions)
    responses = [each.response_token_ids for each in transitions]
    logprobs = [each.response_logprobs for each in transitions]
    same, plain = _columns(transitions)
    head = {
        "episode": [getattr(episode, name) for name in _EPISODE_FIELDS],
        **{name: _rows(getattr(episode, name), kind) for name, kind in _EVENTS.items()},
        "same": same,
        "plain": plain,
        "listed": [[getattr(each, name) for each in transitions] for name in _LISTED],
        "distinct": [_distinct([getattr(each, name) for each in transitions]) for name in _DISTINCT],
        "formats": _distinct([each.observation.get("response_format") for each in transitions]),
        "endings": [
            None if each.action is None else [each.action.get("finish_reason")] for each in transitions
        ],
        "before": before,
        "prompts": _lengths(prompts),
        "responses": _lengths(responses),
        "logprobs": _lengths(logprobs),
    }
    try:
        told = orjson.dumps(head)
    except TypeError:
        return None
    return b"".join(
        [
            fingerprint(),
            len(told).to_bytes(_LENGTH_BYTES, "little"),
            told,
            *(pack_int32(each) for each in prompts if each is not None),
            *(pack_int32(each) for each in responses if each is not None),
            *(pack_float32(each) for each in logprobs if each is not None),
        ]
    )


def can_decode(columns: bytes) -> bool:
    """Whether this very code made the columns."""
    return columns[:FINGERPRINT_BYTES] == fingerprint()


def decode_episode(columns: bytes, load: Callable[[str, int], Sequence[Transition]]) -> Episode:
    """The episode of its columns.

    Args:
        columns: what `encode_episode` gave, and `can_decode` takes.
        load: the transitions of an attempt of a rollout, assembled from the records; called when an observation
            or action is looked at.

    Raises:
        WireError: they are damaged.
    """
    try:
        return _decode(memoryview(columns)[FINGERPRINT_BYTES:], load)
    except (ValueError, TypeError, KeyError, IndexError):
        raise WireError(f"{len(columns)} bytes are not the columns of an episode") from None


def _decode(columns: memoryview, load: Callable[[str, int], Sequence[Transition]]) -> Episode:
    start = _LENGTH_BYTES + int.from_bytes(columns[:_LENGTH_BYTES], "little")
    head = orjson.loads(columns[_LENGTH_BYTES:start])
    shared = dict(zip(_EPISODE_FIELDS, head["episode"], strict=True))
    values: dict[str, Iterable[Any]] = {name: repeat(shared[name]) for name in _SHARED}
    values.update((name, repeat(value)) for name, value in head["same"].items())
    values.update(head["plain"])
    values.update(zip(_LISTED, head["listed"], strict=True))
    for name, (said, which) in zip(_DISTINCT, head["distinct"], strict=True):
        values[name] = [said[at] for at in which]

    endings = head["endings"]
    said, which = head["formats"]
    text = EpisodeText(
        load, shared["rollout_id"] or "", shared["attempt"], values["call_id"], values["choice"]
    )
    values["observation"] = [LateObservation(text, at, said[which[at]]) for at in range(len(endings))]
    values["action"] = [
        None if ending is None else LateAction(text, at, ending[0]) for at, ending in enumerate(endings)
    ]

    # Prompts and responses lie in one stretch, log probabilities after them.
    count = len(endings)
    sequences, start = _cut(columns, start, head["prompts"] + head["responses"], unpack_int32)
    responses = sequences[count:]
    values["prompt_token_ids"] = _whole_prompts(head["before"], sequences[:count], responses)
    values["response_token_ids"] = responses
    values["response_logprobs"], start = _cut(columns, start, head["logprobs"], unpack_float32)
    if start != len(columns):
        raise ValueError("bytes are left over")
    shared["transitions"] = list(map(_make_transition, *map(values.__getitem__, _FIELDS)))
    for name, make in _event_makers.items():
        shared[name] = [make(*row) for row in head[name]]
    episode: Episode = _make_episode(*map(shared.__getitem__, _ALL_EPISODE_FIELDS))
    return episode


def _rows(events: Sequence[Any], kind: type) -> list[list[Any]]:
    names = [each.name for each in fields(kind)]
    return [[getattr(event, name) for name in names] for event in events]


def _columns(transitions: Sequence[Transition]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The plain fields: the value of each that is the same for all, and the values of each other. None is a float."""
    columns = {name: [getattr(each, name) for each in transitions] for name in _PLAIN}
    same = {name: values[0] for name, values in columns.items() if len(set(values)) == 1}
    return same, {name: values for name, values in columns.items() if name not in same}


def _distinct(values: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Different values, and for each place which of them is there."""
    places: dict[bytes, int] = {}
    which = [places.setdefault(repr(value).encode("utf-8", "surrogatepass"), len(places)) for value in values]
    said: list[Any] = [None] * len(places)
    for at, value in zip(which, values, strict=True):
        said[at] = value
    return said, which


def _shorten_prompts(transitions: Sequence[Transition]) -> tuple[list[int], list[array[int] | None]]:
    """What each prompt begins with, and what it adds to that; None for an unknown one."""
    before: list[int] = []
    added: list[array[int] | None] = []
    last_choices: dict[str | None, list[int]] = {}
    packed: list[bytes] = []
    for at, each in enumerate(transitions):
        prompt = b"" if each.prompt_token_ids is None else array("i", each.prompt_token_ids).tobytes()
        begins, known = _NOTHING, b""
        if at and each.prompt_token_ids is not None and transitions[at - 1].call_id == each.call_id:
            if transitions[at - 1].prompt_token_ids == each.prompt_token_ids:
                begins, known = _THE_SAME, prompt
        elif each.parent_call_id is not None:
            for earlier in last_choices.get(each.parent_call_id, ()):
                if prompt.startswith(packed[earlier]):
                    begins, known = earlier, packed[earlier]
        before.append(begins)
        added.append(None if each.prompt_token_ids is None else array("i", prompt[len(known) :]))
        packed.append(prompt + array("i", each.response_token_ids or ()).tobytes())
        # Only one whose ids are known can be gone on from; of calls with one id the latest.
        if at and transitions[at - 1].call_id == each.call_id:
            last_choices[each.call_id].append(at)
        else:
            last_choices[each.call_id] = [at]
    return before, added


def _whole_prompts(
    before: Sequence[int], own: Sequence[array[int] | None], responses: Sequence[array[int] | None]
) -> list[array[int] | None]:
    prompts: list[array[int] | None] = []
    for begins, added in zip(before, own, strict=True):
        if begins == _NOTHING or added is None:
            prompts.append(added)
        elif begins == _THE_SAME:
            prompts.append(prompts[-1])
        else:
            # The short ones first, so that the long one is copied once.
            prompts.append((prompts[begins] or _NO_IDS) + ((responses[begins] or _NO_IDS) + added))
    return prompts


def _lengths(sequences: Sequence[Sequence[Any] | None]) -> list[int]:
    return [_UNKNOWN if each is None else len(each) for each in sequences]


def _cut(
    data: memoryview, start: int, lengths: Sequence[int], unpack: Callable[[bytes], array[Any]]
) -> tuple[list[array[Any] | None], int]:
    """Sequences that lie one after the other, and where they end."""
    total = sum(lengths) + lengths.count(_UNKNOWN)
    end = start + 4 * total
    whole = unpack(data[start:end])  # type: ignore[arg-type]
    if len(whole) != total:
        raise ValueError("bytes are missing")
    sequences: list[array[Any] | None] = []
    at = 0
    for length in lengths:
        if length < 0:
            sequences.append(None)
        else:
            sequences.append(whole[at : (at := at + length)])
    return sequences, end


_NO_IDS: Final = array("i")
