"""`lsdk explain`: why the tokens of a rollout get the gradient that they get."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli.console import counted, print_json, show
from lightning_sdk.cli.example import example
from lightning_sdk.cli.explanation import render_explanation
from lightning_sdk.cli.finding import find_call, find_rollouts, load_rollout, unique_rollout
from lightning_sdk.cli.reading import Source, json_option, load, source_options
from lightning_sdk.collector.reader import Reader
from lightning_sdk.errors import ConfigError, WireError
from lightning_sdk.mdp import Episode, Group
from lightning_sdk.mdp.air import Rule, rules_from_config
from lightning_sdk.mdp.explain import CallWorth, Explanation, explain_rollout
from lightning_sdk.mdp.json_text import parse_json
from lightning_sdk.mdp.select import Selection

# Those that need nothing but the records; and of the baselines those that need no more than the group.
_CREDITS: Final = ("broadcast", "broadcast_scope", "per_call", "discounted")
_BASELINES: Final = ("rloo", "mean", "grpo", "dr_grpo", "dr_mas", "max_rl", "none")


@click.command(
    epilog=example(
        "lsdk explain 3f2a",
        "lsdk explain 3f2a --call 0 --baseline grpo",
        "lsdk explain 3f2a --json | jq .return",
    )
)
@click.argument("target", metavar="ROLLOUT|CALL")
@click.option(
    "--call", metavar="CALL", help="Only this call of the rollout: its step in `lsdk show`, or its id."
)
@click.option("--credit", type=click.Choice(_CREDITS), default="broadcast", show_default=True)
@click.option("--baseline", type=click.Choice(_BASELINES), default="rloo", show_default=True)
@click.option(
    "--agents", metavar="PATTERN", help="Which agents are trained, such as 'writer|rewriter*'. Else all."
)
@click.option(
    "--air",
    "air_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML or JSON with a table `air` of rules.",
)
@source_options
@json_option
def command(
    source: Source,
    target: str,
    call: str | None,
    credit: str,
    baseline: str,
    agents: str | None,
    air_file: Path | None,
    as_json: bool,
) -> None:
    """Explain what the calls of a rollout are worth, and why.

    From the rewards as they were emitted through return, credit, baseline and advantage to the weight of each
    trained token; of a call that is not trained, why. ROLLOUT or CALL is an id or the beginning of it. The
    rollout's whole group is read.
    """
    rules = () if air_file is None else read_rules(air_file)
    with source.reader() as reader:
        rollout_id, call = _find(source, reader, target, call)
        group = _load_group(reader, rollout_id)
    explanation = explain_rollout(
        group, rollout_id, rules=rules, credit=credit, baseline=baseline, selection=Selection(agents=agents)
    )
    calls = _chosen(explanation, call)
    if as_json:
        print_json(explanation_record(explanation, calls))
    else:
        show(*render_explanation(explanation, calls))


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The AIR rules of a file.

    Raises:
        ConfigError: it cannot be read, has no table `air`, or that is not as `rules_from_config` wants it.
    """
    try:
        data = path.read_bytes()
        settings = parse_json(data) if path.suffix == ".json" else _parse_toml(data)
    except (OSError, WireError, ValueError) as error:
        raise ConfigError(f"the AIR rules of {path} cannot be read: {error}") from None
    tables = settings.get("air") if isinstance(settings, Mapping) else None
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{path} has no table `air`; give one, such as [air.tool_error] with weight = -0.1")
    return rules_from_config(tables)


def _parse_toml(data: bytes) -> Any:
    # The standard library has it from 3.11 on, and the [server] extra what it was before.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return toml.loads(data.decode())


def _find(source: Source, reader: Reader, target: str, call: str | None) -> tuple[str, str | None]:
    """The rollout that is meant, and its call, if one is."""
    if call is not None or (not target.startswith("ca_") and find_rollouts(reader, target)):
        return unique_rollout(source, reader, target), call
    found: dict[str, str] = {}
    for loaded in counted(load(reader, RolloutQuery()), "looking for the call"):
        for each in find_call(loaded.episode, target) if not target.isdigit() else ():
            if each.call_id == target:
                return loaded.summary.rollout_id, each.call_id
            found[each.call_id] = loaded.summary.rollout_id
    if len(found) > 1:
        raise click.UsageError(f"{len(found)} calls begin with {target!r}: give more of the id")
    for call_id, rollout_id in found.items():
        return rollout_id, call_id
    raise click.UsageError(
        f"no id of a rollout or call begins with {target!r}: `lsdk rollouts` and `lsdk show ROLLOUT --json` list them"
    )


def _load_group(reader: Reader, rollout_id: str) -> Group:
    own = load_rollout(reader, rollout_id)
    run = RolloutQuery(run_id=own.summary.run_id, task_id=own.summary.task_id)
    ids = {each.rollout_id for each in reader.list_rollouts(run) if each.group_id == own.summary.group_id}
    episodes: dict[str, Episode] = {}
    for loaded in load(reader, RolloutQuery(rollout_id_prefixes=sorted(ids))):
        if loaded.summary.rollout_id in ids:
            episodes[loaded.summary.rollout_id] = loaded.episode
    episodes.setdefault(rollout_id, own.episode)
    return Group(group_id=own.summary.group_id, episodes=tuple(episodes.values()))


def _chosen(explanation: Explanation, call: str | None) -> Sequence[CallWorth]:
    if call is None:
        return explanation.calls
    chosen = {each.call_id for each in find_call(explanation.episode, call)}
    if not chosen:
        raise click.UsageError(
            f"the rollout {explanation.episode.rollout_id} has no call {call!r}: `lsdk show` numbers them"
        )
    return [each for each in explanation.calls if each.call_id in chosen]


def explanation_record(explanation: Explanation, calls: Sequence[CallWorth]) -> dict[str, Any]:
    """The explanation, JSON-ready."""
    episode = explanation.episode
    return {
        "rollout_id": episode.rollout_id,
        "group_id": episode.group_id,
        "rollouts": explanation.rollouts,
        "left_out": dict(explanation.left_out),
        "rewards": [dataclasses.asdict(reward) for reward in episode.rewards],
        "air": [dataclasses.asdict(found) for found in explanation.air],
        "return": explanation.return_,
        "credit": explanation.credit,
        "baseline": explanation.baseline,
        "calls": [dataclasses.asdict(call) for call in calls],
    }
