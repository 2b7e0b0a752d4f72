"""Requests, checked: what is not understood is refused, never ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lightning_sdk.policy.errors import ApiError, invalid, unsupported

# Names of parameters that would change the answer, each with the values at which it does not.
Neutral = Mapping[str, tuple[Any, ...]]

Count = Annotated[int, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]

_MOST_STOPS: Final = 16

_Request = TypeVar("_Request", bound=BaseModel)


class Strict(BaseModel):
    """A part of a request: nothing in it may be unknown or of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def read_fields(body: bytes) -> dict[str, Any]:
    """The object that a body is.

    Raises:
        ApiError: it is none.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise invalid(f"the body is a JSON {type(fields).__name__}, expected an object")
    return fields


def check_fields(kind: type[_Request], fields: Mapping[str, Any]) -> _Request:
    """The request that these fields are.

    Raises:
        ApiError: they are none.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _clearest_fault(error) from None


def without_harmless(fields: Mapping[str, Any], harmless: Collection[str]) -> dict[str, Any]:
    """The fields but for those that change nothing in the answer."""
    return {name: value for name, value in fields.items() if name not in harmless}


def drop_neutral(fields: Mapping[str, Any], neutral: Neutral, where: str = "") -> dict[str, Any]:
    """The fields but for those that say what is so anyway.

    Args:
        fields: of a request, or of a part of it.
        neutral: which those are, if they have one of these values.
        where: the path of the part, for the message.

    Raises:
        ApiError: one of them has another value, so that the answer would have to be another.
    """
    kept = {}
    for name, value in fields.items():
        if name not in neutral:
            kept[name] = value
        elif value is not None and value not in neutral[name]:
            allowed = " or ".join(["leaving it out", *map(repr, neutral[name])])
            raise unsupported(where + name, f"it would change the answer; only {allowed} is accepted")
    return kept


def drop_neutral_in_each(
    fields: dict[str, Any], name: str, neutral: Neutral, harmless: Collection[str] = ()
) -> None:
    """The same for each object of the list `fields[name]`, in place."""
    items = fields.get(name)
    if isinstance(items, list):
        fields[name] = [
            drop_neutral(without_harmless(item, harmless), neutral, f"{name}[{place}].")
            if isinstance(item, dict)
            else item
            for place, item in enumerate(items)
        ]


def check_stops(stops: Collection[str], param: str) -> None:
    """Refuse stop strings that cannot be.

    Raises:
        ApiError: there are too many, or one is empty.
    """
    if len(stops) > _MOST_STOPS or not all(stops):
        raise invalid(f"{param} takes up to {_MOST_STOPS} strings, none empty", param=param)


def _clearest_fault(error: ValidationError) -> ApiError:
    # The innermost: of a union, the branch that got furthest.
    fault = max(error.errors(include_url=False), key=lambda fault: len(fault["loc"]))
    param = _path(fault["loc"])
    if fault["type"] == "extra_forbidden":
        return unsupported(param, "this endpoint does not know it")
    message = fault["msg"].removeprefix("Value error, ")
    return invalid(f"{param or 'the request'}: {message}", param=param or None)


def _path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "role")` as `messages[0].role`, without the names of our own types."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif "[" not in part and part not in ("str", "list") and not part[:1].isupper():
            path += f".{part}" if path else part
    return path
