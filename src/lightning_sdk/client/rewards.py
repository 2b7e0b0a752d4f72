"""Rewards, annotations and the handle of the latest call: what a user says about a rollout from within their
code.

A reward finds its place by ids that were made when things began, and says in its record how it did:
by a call that was named, by the scope that the code is in, by the rollout that ended last in this context, or
by a rollout that was named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat

from lightning_sdk.client import faults, runtime, scope
from lightning_sdk.client.loading import load_client
from lightning_sdk.client.scope import CallHandle
from lightning_sdk.ids import fitted_id, unfit

if TYPE_CHECKING:
    from lightning_sdk.records import Reward

_UNBOUND = (
    "emit_reward() found no rollout: it was called outside any scope, and none has ended in this context; "
    "the reward is kept, but counts for nothing. Name the rollout with rollout_id=…"
)
_ANOTHER_SINCE = (
    "emit_reward() went to the rollout that ended last in this context, but another has ended since, in a task "
    "or thread of its own: if that was meant, name it with rollout_id=…, or call emit_reward() where it runs"
)
_NOTHING_TO_ANNOTATE = (
    "annotate() found no rollout: it was called outside any scope, and none has ended in this context; "
    "its values are dropped. Give them to rollout(metadata=…), or call it where the agent runs"
)


def emit_reward(
    value: SupportsFloat | Mapping[str, SupportsFloat],
    *,
    name: str | None = None,
    call: CallHandle | str | None = None,
    choice: int | None = None,
    rollout_id: str | None = None,
    reward_id: str | None = None,
) -> None:
    """Reward what the agent did. Rewards add up.

    Inside a scope it goes to the latest finished call of that scope or of those that it called; after the
    outermost scope, to the last call of the rollout that ended last in this context.

    Args:
        value: a number, or numbers by the name of their component; their sum is the reward.
        name: the component's name where `value` is a number. Default: "reward".
        call: the call to reward instead, of whichever rollout: a handle from `last_call()`, or the id in a
            response.
        choice: which choice of that call, where it had several.
        rollout_id: the rollout to reward instead, from any process, also days later.
        reward_id: a later reward with the same id replaces this one.

    Raises:
        ValueError: not a finite number, or arguments that do not go together.
    """
    components = _components(value, name)
    _check_places(call, choice, rollout_id, reward_id)
    # As `rollout` does with the id that it is given.
    rollout_id = None if rollout_id is None else fitted_id(rollout_id)
    reward_id = None if reward_id is None else fitted_id(reward_id)
    call = fitted_id(call) if isinstance(call, str) else call
    with faults.guard("emit_reward"):
        active = runtime.active()
        if not _emit(active, components, call, choice, rollout_id, reward_id):
            active.warn_once(_UNBOUND)
        elif (
            call is None and rollout_id is None and scope.current() is None and scope.ended_elsewhere_since()
        ):
            active.warn_once(_ANOTHER_SINCE)


def annotate(**values: Any) -> None:
    """Merge values into the metadata of the rollout: the present one, else the one that ended last in this
    context.

    Args:
        values: what JSON cannot say is kept as its repr.
    """
    load_client()
    from lightning_sdk.client import journal
    from lightning_sdk.client.jsonable import object_to_json
    from lightning_sdk.client.redact import redact
    from lightning_sdk.records import Note, Record

    with faults.guard("annotate"):
        active = runtime.active()
        place, _ = scope.current_or_ended()
        if not values:
            return
        if place is None:
            faults.count("annotations_without_rollout")
            active.warn_once(_NOTHING_TO_ANNOTATE)
            return
        note, redactions = redact(object_to_json(values), active.config.redact)
        if redactions:
            faults.count("redactions_in_notes", redactions)
        journal.append(place, journal.unticked(), Record(note=Note(values=note)))


def last_call() -> CallHandle | None:
    """The latest finished call in the present scope's subtree; after the outermost scope, of its rollout."""
    place, _ = scope.current_or_ended()
    return place.last_call if place is not None else None


def _emit(
    active: runtime.Runtime,
    components: dict[str, float],
    call: CallHandle | str | None,
    choice: int | None,
    rollout_id: str | None,
    reward_id: str | None,
) -> bool:
    """Write the reward; False if it is for nothing."""
    from lightning_sdk.client import journal
    from lightning_sdk.records import Record, Reward

    reward = Reward(
        reward_id=reward_id or "",
        components=[Reward.Component(name=name, value=value) for name, value in components.items()],
        choice=choice,
    )
    place, has_ended = scope.current_or_ended()
    named = call if isinstance(call, CallHandle) else None
    if call is not None:
        reward.bound = Reward.BOUND_CALL
        reward.call_id = call if isinstance(call, str) else call.call_id
    elif rollout_id is not None:
        # Which call is the last of it is known when it is read.
        reward.bound = Reward.BOUND_ROLLOUT
    elif place is not None:
        reward.bound = Reward.BOUND_CONTEXT if has_ended else Reward.BOUND_SCOPE
        reward.call_id = place.last_call.call_id if place.last_call else ""

    wanted = rollout_id or (named.rollout_id if named else "")
    if place is None or ((wanted or call is not None) and wanted != place.rollout.rollout_id):
        return _emit_elsewhere(active, reward, named, wanted)
    scope_id = None
    if named is not None:
        scope_id = named.scope_id
    elif rollout_id is not None:
        scope_id = ""
    journal.append(place, journal.unticked(), Record(reward=reward), scope_id)
    return True


def _emit_elsewhere(
    active: runtime.Runtime, reward: Reward, named: CallHandle | None, rollout_id: str
) -> bool:
    """Write a reward for a rollout that this code is not in, for a call of who knows which, or for nothing.

    Such a record is about a rollout, not part of it: its producer neither joins nor leaves. Which rollout a
    call is of that was named by the id in its response is known when it is read: it may be anybody's.

    Returns:
        False if it is for nothing.
    """
    from lightning_sdk.client import journal
    from lightning_sdk.records import Record, Reward

    is_placed = bool(rollout_id) or reward.bound == Reward.BOUND_CALL
    if not is_placed:
        reward.bound = Reward.BOUND_NONE
        faults.count("rewards_unbound")
    record = Record(rollout_id=rollout_id, reward=reward)
    if named is not None and named.rollout_id == rollout_id:
        record.attempt = named.attempt
        record.group_id = named.group_id
        record.scope_id = named.scope_id
    journal.append_outside(active, journal.unticked(), record)
    return is_placed


def _components(value: object, name: str | None) -> dict[str, float]:
    if not isinstance(value, Mapping):
        if name is not None and (not isinstance(name, str) or not name):
            raise ValueError(f"emit_reward(name={name!r}): expected a name that is not empty")
        _check_text("name", name)
        return {name or "reward": _number(value, "")}
    if name is not None:
        raise ValueError(
            f"emit_reward(name={name!r}) goes with a number: the mapping names its components itself"
        )
    if not value:
        raise ValueError("emit_reward() got an empty mapping: expected at least one named component")
    components = {}
    for key, component in value.items():
        if not isinstance(key, str) or not key:
            raise ValueError(
                f"emit_reward() got a component named {key!r}: expected a string that is not empty"
            )
        _check_text("a component's name", key)
        components[key] = _number(component, f"[{key!r}]")
    if not math.isfinite(sum(components.values())):
        raise ValueError(
            f"emit_reward({_short(value)}) has a sum that is not finite: expected a finite number"
        )
    return components


def _number(value: object, where: str) -> float:
    found = f"emit_reward(value{where}={_short(value)})"
    kind = type(value)
    if not hasattr(kind, "__float__") and not hasattr(kind, "__index__"):
        raise ValueError(f"{found} is a {kind.__name__}: expected a finite number")
    try:
        number = float(value)  # type: ignore[arg-type]
    except Exception as error:
        faults.pass_on(error)
        raise ValueError(f"{found} cannot be made a float ({error}): expected a finite number") from None
    if not math.isfinite(number):
        raise ValueError(f"{found} is not finite: leave the reward out if it is not known")
    return number


def _check_text(name: str, text: str | None) -> None:
    if text is not None and (reason := unfit(text)):
        raise ValueError(f"emit_reward({name}={_short(text)}) {reason}")


def _short(value: object) -> str:
    try:
        text = repr(value)
    except BaseException as raised:
        faults.pass_on_unless_raised(raised)
        text = type(value).__name__
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _check_places(
    call: CallHandle | str | None, choice: int | None, rollout_id: str | None, reward_id: str | None
) -> None:
    if call is not None and (not isinstance(call, CallHandle | str) or not call):
        raise ValueError(
            f"emit_reward(call={call!r}): expected a handle from last_call(), or the id in a response"
        )
    if choice is not None:
        if call is None:
            raise ValueError(f"emit_reward(choice={choice!r}) needs call=…: which call's choice it is")
        if not isinstance(choice, int) or isinstance(choice, bool) or not 0 <= choice < 1 << 31:
            raise ValueError(f"emit_reward(choice={choice!r}): expected the index of a choice, from 0")
    for name, text in (("rollout_id", rollout_id), ("reward_id", reward_id)):
        if text is not None and (not isinstance(text, str) or not text):
            raise ValueError(f"emit_reward({name}={text!r}): expected a string that is not empty")
