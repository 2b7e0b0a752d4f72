"""`lsdk reward`: a reward that comes later."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.text import Text

from lightning_sdk.cli import wording
from lightning_sdk.cli.console import print_json, remark, show
from lightning_sdk.cli.example import example
from lightning_sdk.cli.finding import find_call, find_rollouts, load_rollout, unique_rollout
from lightning_sdk.cli.reading import Source, json_option, source_options
from lightning_sdk.client.producer import Producer
from lightning_sdk.collector.reader import Reader
from lightning_sdk.ids import new_id, unfit
from lightning_sdk.mdp import Transition
from lightning_sdk.records import Record, Reward

# How long a collector has to acknowledge the reward. What it does not stays in the spool.
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True)
class _Place:
    """What is rewarded. No call: the last one of the rollout, whichever that is when it is read."""

    rollout_id: str
    call_id: str = ""
    choice: int | None = None


@click.command(
    epilog=example(
        "lsdk reward 3f2a 1", "lsdk reward 3f2a -0.5 --name brevity --call 0 --id brevity-of-3f2a"
    ),
    # A value below 0 is no option.
    context_settings={"ignore_unknown_options": True},
)
@click.argument("rollout")
@click.argument("value", type=float)
@click.option("--name", default="reward", show_default=True, metavar="NAME", help="The component's name.")
@click.option(
    "--call",
    metavar="CALL",
    help="The call to reward: its step in `lsdk show`, or its id. Else the last one.",
)
@click.option("--choice", type=click.IntRange(min=0), metavar="N", help="Which choice of that call, from 0.")
@click.option(
    "--id",
    "reward_id",
    metavar="ID",
    help="The reward's id, so that it replaces the one before with that id.",
)
@click.option(
    "--force", is_flag=True, help="Take a rollout or call that is not stored (yet), by its whole id."
)
@source_options
@json_option
def command(
    source: Source,
    rollout: str,
    value: float,
    name: str,
    call: str | None,
    choice: int | None,
    reward_id: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Reward a rollout after it has ended.

    ROLLOUT is its id or the beginning of it, VALUE a number. Rewards add up; one with the id of an earlier one of
    the rollout replaces it. Every reward from here has an id, which is printed, so that a repetition can give it.
    """
    if not math.isfinite(value):
        raise click.UsageError(
            f"the reward is {value}: give a finite number, or leave it out if it is not known"
        )
    for option, text in (("ROLLOUT", rollout), ("--name", name), ("--call", call), ("--id", reward_id)):
        reason = "is empty: give a text" if text == "" else unfit(text or "")
        if reason:
            raise click.UsageError(f"{option} {reason}")
    if choice is not None and call is None:
        raise click.UsageError("--choice needs --call: which call's choice it is")
    with source.reader() as reader:
        place = _find(source, reader, rollout, call, choice, force=force)
    reward_id = reward_id or new_id("rw")
    arrived = _emit(source, place, name, value, reward_id)
    if not arrived:
        remark(
            f"the collector has not answered in {_PATIENCE_S:.0f} s: the reward waits in {source.home.spool}"
        )
    facts: dict[str, Any] = {
        "reward_id": reward_id,
        "rollout_id": place.rollout_id,
        "call_id": place.call_id or None,
        "choice": place.choice,
        "name": name,
        "value": value,
        "arrived": arrived,
    }
    if as_json:
        print_json(facts)
    else:
        show(*_lines(facts))


def _find(
    source: Source, reader: Reader, rollout: str, call: str | None, choice: int | None, *, force: bool
) -> _Place:
    if force and not find_rollouts(reader, rollout):
        return _Place(rollout, call or "", choice)
    rollout_id = unique_rollout(source, reader, rollout)
    if call is None:
        return _Place(rollout_id)
    choices = find_call(load_rollout(reader, rollout_id).episode, call)
    if not choices:
        if force:
            return _Place(rollout_id, call, choice)
        raise click.UsageError(
            f"the rollout {rollout_id} has no call {call!r}: `lsdk show {rollout}` numbers them"
        )
    _check_choice(choices, choice, force=force)
    return _Place(rollout_id, choices[0].call_id, choice)


def _check_choice(choices: Sequence[Transition], choice: int | None, *, force: bool) -> None:
    known = [each.choice for each in choices]
    if choice is not None and choice not in known and not force:
        raise click.UsageError(
            f"call {choices[0].call_id} has no choice {choice}, but {', '.join(map(str, known))}"
        )


def _emit(source: Source, place: _Place, name: str, value: float, reward_id: str) -> bool:
    """Write the reward as a client would, by a producer of its own. Whether it is where it shall be."""
    source.home.ensure()
    bound = Reward.BOUND_CALL if place.call_id else Reward.BOUND_ROLLOUT
    now_ns = time.time_ns()
    reward = Reward(
        reward_id=reward_id,
        components=[Reward.Component(name=name, value=value)],
        bound=bound,
        call_id=place.call_id,
        choice=place.choice,
    )
    with closing(
        Producer(source.home.spool, destination=source.endpoint or "", token=source.token)
    ) as producer:
        producer.write(
            Record(
                order=producer.tick(),
                start_ns=now_ns,
                end_ns=now_ns,
                rollout_id=place.rollout_id,
                reward=reward,
            )
        )
        return producer.flush(_PATIENCE_S)


def _lines(facts: dict[str, Any]) -> list[Text]:
    where = "its last call"
    if facts["call_id"]:
        where = f"call {wording.one_line(facts['call_id'])}"
    if facts["choice"] is not None:
        where += f", choice {facts['choice']}"
    return [
        Text(
            f"reward {facts['value']:+.4g} ({wording.one_line(facts['name'])}) for rollout "
            f"{wording.one_line(facts['rollout_id'])}, {where}"
        ),
        Text(f"id {wording.one_line(facts['reward_id'])}: give it as --id to replace this reward"),
    ]
