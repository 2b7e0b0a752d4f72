"""Rollouts and calls by what a person types: the beginning of an id, or the number of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from lightning_sdk._proto.read_pb2 import RolloutQuery, RolloutSummary
from lightning_sdk.cli.console import show
from lightning_sdk.cli.empty import nothing_found
from lightning_sdk.cli.listing import list_rows, rollout_table
from lightning_sdk.cli.reading import Loaded, Source, load
from lightning_sdk.collector.reader import Reader
from lightning_sdk.mdp import Episode, Transition

# How many of the rollouts that fit the beginning of an id are listed.
_CANDIDATES: Final = 10
# What is a number up to here is a step; the beginning of an id is longer, or has letters.
_STEP_DIGITS: Final = 5


def unique_rollout(source: Source, reader: Reader, beginning: str) -> str:
    """The id of the only rollout whose id begins so. Where there are several, they are listed on stderr.

    Raises:
        UsageError: there is none, or more than one.
    """
    # The reader takes a beginning with or without "ro_".
    found = find_rollouts(reader, beginning)
    if not found:
        if next(iter(reader.list_rollouts(RolloutQuery(limit=1))), None) is None:
            raise click.UsageError(nothing_found(source, reader))
        raise click.UsageError(f"no rollout's id begins with {beginning!r}: `lsdk rollouts` lists them")
    if len(found) > 1:
        shown = found[:_CANDIDATES]
        show(rollout_table(list_rows(reader, shown)), table=True, error=True)
        which = "these" if len(shown) == len(found) else f"the newest {len(shown)} are these"
        raise click.UsageError(
            f"{len(found)} rollouts begin with {beginning!r}, {which}: give more of the id"
        )
    return found[0].rollout_id


def find_rollouts(reader: Reader, beginning: str) -> Sequence[RolloutSummary]:
    """Rollouts whose id begins so, newest first; the one alone whose id it is."""
    found = list(reader.list_rollouts(RolloutQuery(rollout_id_prefixes=[beginning])))
    return [summary for summary in found if summary.rollout_id == beginning] or found


def load_rollout(reader: Reader, rollout_id: str) -> Loaded:
    """One rollout.

    Raises:
        UsageError: nothing in its records can be read.
    """
    for loaded in load(reader, RolloutQuery(rollout_id_prefixes=[rollout_id])):
        if loaded.summary.rollout_id == rollout_id:
            return loaded
    raise click.UsageError(f"the rollout {rollout_id} has no readable records")


def find_call(episode: Episode, name: str) -> Sequence[Transition]:
    """The choices of a call of an episode; none where it has no such call.

    Args:
        episode: whose call.
        name: its step, as `lsdk show` numbers it, or its id or the beginning of that, with or without "ca_".

    Raises:
        UsageError: several begin so.
    """
    calls = episode.transitions
    if name.isascii() and name.isdigit() and len(name) <= _STEP_DIGITS:
        return [each for each in calls if each.step == int(name)]
    found = [each for each in calls if each.call_id == name] or [
        each for each in calls if each.call_id.startswith((name, f"ca_{name}"))
    ]
    if len({each.call_id for each in found}) > 1:
        raise click.UsageError(
            f"several calls of {episode.rollout_id} begin with {name!r}: give more of the id"
        )
    return found
