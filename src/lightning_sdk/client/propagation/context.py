"""A scope as text, for another process; and back, as the scope of a rollout that this process has joined."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode

from lightning_sdk.client import config, faults, runtime, scope
from lightning_sdk.errors import WireError
from lightning_sdk.ids import unfit

# A header line of more is refused by many servers.
MAX_CHARACTERS: Final = 7000
_MAX_FIELDS: Final = 40
_MAX_ATTEMPT: Final = (1 << 31) - 1
_MAX_ORDER: Final = (1 << 63) - 1
_SETTING: Final = "set."
# How many rollouts of other processes are kept here, with what this process owes them.
_MAX_ROLLOUTS: Final = 4096

_lock = threading.RLock()
_kept: deque[scope.Rollout] = deque(maxlen=_MAX_ROLLOUTS)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What of a scope another process needs to record in it."""

    rollout_id: str
    attempt: int
    group_id: str
    run_id: str
    task_id: str | None
    split: str | None
    scope_id: str
    agent: str
    # Who wrote there last, and the order of that: what the other process does comes after it.
    producer: bytes
    order: int
    # Settings of the process it comes from, by name; between processes of one program only.
    settings: Mapping[str, str] = field(default_factory=dict, compare=False)


def encode(current: scope.Scope, settings: Mapping[str, str] | None = None) -> str | None:
    """A scope as one line of visible ASCII, without secrets unless they are in `settings`.

    Returns:
        None where it would be too long, which is counted.
    """
    rollout = current.rollout
    membership = rollout.membership
    fields: dict[str, object] = {
        "rollout": rollout.rollout_id,
        "attempt": rollout.attempt,
        "group": rollout.group_id,
        "run": rollout.run_id,
        "task": rollout.task_id,
        "split": rollout.split,
        "scope": current.scope_id,
        "agent": current.agent,
        "producer": membership.producer.hex() if membership is not None else "",
        "order": membership.last_order if membership is not None else 0,
        **{_SETTING + name: value for name, value in (settings or {}).items()},
    }
    text = urlencode({name: value for name, value in fields.items() if value not in (None, "")})
    if len(text) > MAX_CHARACTERS:
        faults.count("contexts_withheld")
        return None
    return text


def decode(text: str) -> Carried:
    """What `encode` made; the text may be hostile.

    Raises:
        WireError: it is nothing of the kind.
    """
    if len(text) > MAX_CHARACTERS:
        raise WireError(f"a context of {len(text)} characters: at most {MAX_CHARACTERS} expected")
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_MAX_FIELDS
        )
        fields = dict(pairs)
        producer = bytes.fromhex(fields.get("producer", ""))
        attempt, order = _number(fields.get("attempt", "")), _number(fields.get("order", "0"))
    except ValueError as error:
        raise WireError(f"a context that cannot be read ({error}): expected what inject() makes") from None
    if len(fields) < len(pairs) or not fields.get("rollout") or len(producer) not in (0, 16):
        raise WireError("a context without a rollout, or of another make: expected what inject() makes")
    if not 1 <= attempt <= _MAX_ATTEMPT or not 0 <= order <= _MAX_ORDER:
        raise WireError(f"a context of attempt {attempt} and order {order}: expected numbers that exist")
    settings = {
        name.removeprefix(_SETTING): fields.pop(name) for name in [*fields] if name.startswith(_SETTING)
    }
    for name, value in fields.items():
        if reason := unfit(value):
            raise WireError(f"a context whose {name!a:.40} {reason}")
    return Carried(
        rollout_id=fields["rollout"],
        attempt=attempt,
        group_id=fields.get("group", fields["rollout"]),
        run_id=fields.get("run", ""),
        task_id=fields.get("task"),
        split=fields.get("split"),
        scope_id=fields.get("scope", ""),
        agent=fields.get("agent", ""),
        producer=producer,
        order=order,
        settings=settings,
    )


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise ValueError(f"{text[:40]!a} is no number")
    return int(text)


def scope_of(carried: Carried) -> scope.Scope:
    """The scope in this process: in the rollout as it is known here, else in one that is joined when it writes."""
    with _lock:
        rollout = scope.known_rollout(carried.rollout_id, carried.attempt)
        if rollout is None:
            rollout = _joined_rollout(carried)
            _kept.append(rollout)
    return scope.Scope(rollout, scope_id=carried.scope_id, agent=carried.agent)


def scope_of_program(text: str) -> scope.Scope:
    """The scope of a text from a process of the same program, whose settings hold here where nothing else does.

    Raises:
        WireError: it is nothing of the kind.
    """
    carried = decode(text)
    config.inherit(carried.settings)
    return scope_of(carried)


def _joined_rollout(carried: Carried) -> scope.Rollout:
    return scope.Rollout(
        None,
        rollout_id=carried.rollout_id,
        attempt=carried.attempt,
        group_id=carried.group_id,
        run_id=carried.run_id,
        task_id=carried.task_id,
        split=carried.split,
        parent=(carried.producer, carried.order) if carried.producer else None,
    )


def settings_for(current: scope.Scope, *, private: bool) -> dict[str, str] | None:
    """What a process that is started in `current` needs to record as this one does.

    Args:
        current: the scope.
        private: whether nobody but that process gets to see them; only then tokens are among them.

    Returns:
        None where it could not record so: this process records into memory, or hides what only it can.
    """
    recording = runtime.active_for(current.rollout)
    settled = recording.config
    if recording.captured:
        return None
    if settled.redact is not None:
        faults.count("contexts_withheld")
        return None
    home = settled.home
    settings = {
        "endpoint": settled.endpoint,
        "home": str(home.path),
        "spool_dir": str(home.spool) if home.spool != home.path / "spool" else "",
        "project": settled.project,
        "run_id": recording.run_id,
        "split": settled.split,
        "policy_endpoint": settled.policy_endpoint,
        "agents": json.dumps(dict(settled.agents)) if settled.agents else "",
        "token": settled.token if private else None,
        "policy_token": settled.policy_token if private else None,
    }
    return {name: value for name, value in settings.items() if value}
