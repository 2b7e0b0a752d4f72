"""Frozen dataclasses made quickly are what the class itself makes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, fields, replace

import pytest

from lightning_sdk.mdp.episode import Transition
from lightning_sdk.mdp.frozen import quick_maker


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    y: int = 0


def test_it_is_of_the_class_equal_and_frozen() -> None:
    made = quick_maker(Point)(1, 2)
    assert type(made) is Point
    assert made == Point(x=1, y=2)
    assert hash(made) == hash(Point(x=1, y=2))
    assert repr(made) == repr(Point(x=1, y=2))
    assert replace(made, y=3) == Point(x=1, y=3)
    assert copy.copy(made) == pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(FrozenInstanceError):
        made.x = 5  # type: ignore[misc]


def test_every_field_must_be_given() -> None:
    with pytest.raises(TypeError):
        quick_maker(Point)(1)


def test_the_fields_of_a_transition_are_taken_in_their_order() -> None:
    names = [field.name for field in fields(Transition)]
    made = quick_maker(Transition)(*names)
    assert all(getattr(made, name) == name for name in names)
