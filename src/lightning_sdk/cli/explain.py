"""`lsdk explain`: why the tokens of a rollout get the gradient that they get."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import click

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.cli.console import counted, print_json, show
from lightning_sdk.cli.example import example
from lightning_sdk.cli.explanation import render_explanation
from lightning_sdk.cli.finding import find_call, find_rollouts, load_rollout, unique_rollout
from lightning_sdk.cli.learning_options import Learning, learning_options
from lightning_sdk.cli.reading import Loaded, Source, json_option, load, source_options
from lightning_sdk.collector.reader import Reader
from lightning_sdk.mdp import Episode, Group
from lightning_sdk.mdp.explain import CallWorth, Explanation, explain_rollout
from lightning_sdk.mdp.otel import OTEL_CALL


@click.command(
    epilog=example(
        "lsdk explain 3f2a",
        "lsdk explain 3f2a --call 0 --baseline grpo --baseline-param ddof=0",
        "lsdk explain 3f2a --json | jq .return",
    )
)
@click.argument("target", metavar="ROLLOUT|CALL")
@click.option(
    "--call", metavar="CALL", help="Only this call of the rollout: its step in `lsdk show`, or its id."
)
@learning_options
@source_options
@json_option
def command(
    source: Source,
    target: str,
    call: str | None,
    learning: Learning,
    as_json: bool,
) -> None:
    """Explain what the calls of a rollout are worth, and why.

    From the rewards as they were emitted through return, credit, baseline and advantage to the weight of each
    trained token; of a call that is not trained, why. ROLLOUT or CALL is an id or the beginning of it. The
    rollout's whole group is read.
    """
    with source.reader() as reader:
        rollout_id, call = _find(source, reader, target, call)
        group = _load_group(reader, rollout_id)
    explanation = explain_rollout(
        group,
        rollout_id,
        rules=learning.rules,
        credit=learning.credit,
        baseline=learning.baseline,
        credit_params=learning.credit_params,
        baseline_params=learning.baseline_params,
        selection=learning.selection,
        failure_reward=learning.failure_reward,
        mask_truncated=learning.mask_truncated,
        constant_length=learning.constant_length,
    )
    calls = _chosen(explanation, call)
    if as_json:
        print_json(explanation_record(explanation, calls))
    else:
        show(*render_explanation(explanation, calls))


def _find(source: Source, reader: Reader, target: str, call: str | None) -> tuple[str, str | None]:
    """The rollout that is meant, and its call, if one is."""
    if call is not None or (not target.startswith("ca_") and find_rollouts(reader, target)):
        return unique_rollout(source, reader, target), call
    found: dict[str, str] = {}
    for loaded in _with_call(reader, target) if not target.isdigit() else ():
        for each in find_call(loaded.episode, target):
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


def _with_call(reader: Reader, beginning: str) -> Iterator[Loaded]:
    """Rollouts that may have a call with such an id."""
    if beginning.startswith(OTEL_CALL):
        # Made of the id of a span, which no index has.
        return counted(load(reader, RolloutQuery()), "looking for the call")
    return load(reader, RolloutQuery(call_id_prefixes=[beginning]))


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
        "is_failure_reward": explanation.is_failure_reward,
        "credit": explanation.credit,
        "credit_params": dict(explanation.credit_params),
        "baseline": explanation.baseline,
        "baseline_params": dict(explanation.baseline_params),
        "calls": [dataclasses.asdict(call) for call in calls],
    }
