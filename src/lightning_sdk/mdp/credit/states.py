"""States that calls share, for credits that compare what happened from the same state on."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.episode import Transition
from lightning_sdk.mdp.table import CallTable

# What the state is in which a call was made: equal keys, same state. The observation itself will not do, since a
# prompt that holds the whole history never comes again.
StateKey = Callable[[Transition], Hashable]


def state_keys(table: CallTable, state_key: StateKey | None, credit: str) -> list[Hashable]:
    """The key of each row that takes part; None at the others.

    Raises:
        ConfigError: there is no function, or it gives what cannot be a key, None included.
    """
    if state_key is None:
        raise ConfigError(
            f"{credit} compares calls made in the same state, and a prompt with its whole history never comes again; "
            "give state_key=, a function from a transition to what names its state"
        )
    if not callable(state_key):
        raise ConfigError(
            f"state_key is {state_key!r}; give a function from a transition to what names its state"
        )
    keys: list[Hashable] = [None] * table.calls
    for row, transition in enumerate(table.transitions):
        if not (table.decision_C[row] and table.in_baseline_E[table.episode_C[row]]):
            continue
        key = state_key(transition)
        try:
            hash(key)
        except TypeError:
            raise ConfigError(
                f"state_key gave {type(key).__name__} for {table.name_of(row)}, which cannot be a key; "
                "give a string, a number or a tuple of them"
            ) from None
        if key is None:
            raise ConfigError(f"state_key gave None for {table.name_of(row)}; every call needs a state")
        keys[row] = key
    return keys
