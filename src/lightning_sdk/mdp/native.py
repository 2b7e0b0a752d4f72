"""A transition as one line of a dataset: the native record."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from lightning_sdk.mdp.episode import Transition

# Goes up when a field is added, or means something else.
NATIVE_SCHEMA_VERSION: Final = 1

_KEYS: Final = tuple(field.name for field in fields(Transition))
# Kept as packed arrays until here.
_SEQUENCES: Final = frozenset({"prompt_token_ids", "response_token_ids", "response_logprobs"})
# May be read only now.
_LATE: Final = frozenset({"observation", "action"})


def native_record(transition: Transition) -> dict[str, Any]:
    """The native dataset record of a transition: its fields, in their order, after `schema_version`.

    Everything in it is what JSON can say: token ids and log probabilities are lists, what is not known is
    None, and no number is NaN or infinite.
    """
    record: dict[str, Any] = {"schema_version": NATIVE_SCHEMA_VERSION}
    for key in _KEYS:
        value = getattr(transition, key)
        if value is not None and key in _SEQUENCES:
            value = list(value)
        elif value is not None and key in _LATE:
            value = dict(value)
        record[key] = value
    return record
