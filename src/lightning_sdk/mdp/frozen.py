"""Frozen dataclasses made quickly, where there are as many of them as calls.

A frozen dataclass with slots sets each field through `object.__setattr__`, and keywords are matched one by one: for
the fields of a transition together some 13 µs, which is more than the rest of its assembly may take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def quick_maker(frozen: type[T]) -> Callable[..., T]:
    """A function that makes instances of a frozen dataclass with slots, given all fields by position, in order.

    What it makes cannot be told from what the class makes. It does so as a mutable twin with the same slots, then
    changes the class, which Python allows between classes with the same slots.
    """

    def become_frozen(made: Any) -> None:
        made.__class__ = frozen

    names = [(each.name, Any, field()) for each in fields(frozen)]  # type: ignore[arg-type]
    return make_dataclass(
        f"_Unfrozen{frozen.__name__}", names, slots=True, namespace={"__post_init__": become_frozen}
    )
