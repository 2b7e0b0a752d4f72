"""How episodes are learned from, as options of a command: AIR, credit, baseline, selection."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from lightning_sdk.errors import ConfigError, WireError
from lightning_sdk.mdp.air import Rule, rules_from_config
from lightning_sdk.mdp.baseline import BASELINES, BaselineFunction
from lightning_sdk.mdp.credit import CREDITS, CreditFunction
from lightning_sdk.mdp.json_text import parse_json
from lightning_sdk.mdp.select import Selection
from lightning_sdk.rollouts.agents import import_from_here

# Their values come from elsewhere (a critic, a program), and no record has them.
_NOT_RECORDED: Final = frozenset({"turn_gae", "precomputed"})
_BY_STATE: Final = frozenset({"gigpo", "hgpo"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What `compute_advantages` and `weight_rows` are told."""

    rules: tuple[Rule, ...]
    credit: str | CreditFunction
    credit_params: Mapping[str, Any]
    # None: that of the credit.
    baseline: str | BaselineFunction | None
    baseline_params: Mapping[str, Any]
    selection: Selection
    failure_reward: float | None
    mask_truncated: bool
    constant_length: int | None


def learning_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as `learning: Learning`."""

    @click.option(
        "--air",
        "air_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="TOML or JSON with a table `air` of rules.",
    )
    @click.option(
        "--credit",
        default="broadcast",
        show_default=True,
        metavar="NAME",
        help=f"{', '.join(each for each in CREDITS if each not in _NOT_RECORDED)}; or module:function.",
    )
    @click.option(
        "--credit-param",
        "credit_params",
        multiple=True,
        metavar="KEY=VALUE",
        help="A parameter of the credit, such as gamma=0.95. Repeatable.",
    )
    @click.option(
        "--state-key",
        metavar="MODULE:FUNCTION",
        help="For gigpo and hgpo: from a transition to what names its state.",
    )
    @click.option(
        "--baseline",
        metavar="NAME",
        help=f"{', '.join(BASELINES)}; or module:function. Else that of the credit.",
    )
    @click.option(
        "--baseline-param",
        "baseline_params",
        multiple=True,
        metavar="KEY=VALUE",
        help="A parameter of the baseline, such as by=group. Repeatable.",
    )
    @click.option(
        "--constant-length",
        type=click.IntRange(min=1),
        metavar="N",
        help="For dr_grpo: the length that its loss is over.",
    )
    @click.option("--agents", metavar="PATTERN", help="Agents that are trained, such as 'writer|rewriter*'.")
    @click.option("--models", metavar="PATTERN", help="Models that are trained.")
    @click.option("--policies", metavar="PATTERN", help="Policies that are trained.")
    @click.option(
        "--max-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="Leave longer calls out, prompt included.",
    )
    @click.option(
        "--min-policy-version",
        type=int,
        metavar="N",
        help="Leave groups with a call of an older version out.",
    )
    @click.option("--text", is_flag=True, help="Take calls without token ids too, as for learning from text.")
    @click.option(
        "--failure-reward",
        type=float,
        metavar="X",
        help="The return of failed and truncated rollouts that got no reward.",
    )
    @click.option(
        "--mask-truncated", is_flag=True, help="Keep truncated rollouts out of the loss, not the baseline."
    )
    @functools.wraps(command)
    def with_learning(*args: Any, **options: Any) -> Any:
        told = {name: options.pop(name) for name in _OPTIONS}
        return command(*args, learning=_learning(**told), **options)

    return with_learning


_OPTIONS: Final[tuple[str, ...]] = (
    "air_file",
    "credit",
    "credit_params",
    "state_key",
    "baseline",
    "baseline_params",
    "constant_length",
    "agents",
    "models",
    "policies",
    "max_tokens",
    "min_policy_version",
    "text",
    "failure_reward",
    "mask_truncated",
)


def _learning(
    *,
    air_file: Path | None,
    credit: str,
    credit_params: Sequence[str],
    state_key: str | None,
    baseline: str | None,
    baseline_params: Sequence[str],
    constant_length: int | None,
    agents: str | None,
    models: str | None,
    policies: str | None,
    max_tokens: int | None,
    min_policy_version: int | None,
    text: bool,
    failure_reward: float | None,
    mask_truncated: bool,
) -> Learning:
    if credit in _NOT_RECORDED:
        raise click.UsageError(
            f"--credit {credit} needs values that no record has (a critic's, or a program's): "
            "compute_advantages takes them"
        )
    parameters = _parameters("--credit-param", credit_params)
    if "state_key" in parameters:
        raise click.UsageError("--credit-param state_key=… is given as --state-key module:function")
    if state_key is not None:
        if credit not in _BY_STATE and ":" not in credit:
            raise click.UsageError(f"--state-key does nothing with --credit {credit}: leave it out")
        parameters["state_key"] = _import("--state-key", state_key)
    return Learning(
        rules=() if air_file is None else read_rules(air_file),
        credit=_import("--credit", credit) if ":" in credit else credit,
        credit_params=parameters,
        baseline=_import("--baseline", baseline) if baseline is not None and ":" in baseline else baseline,
        baseline_params=_parameters("--baseline-param", baseline_params),
        selection=Selection(
            agents=agents,
            models=models,
            policies=policies,
            max_tokens=max_tokens,
            min_policy_version=min_policy_version,
            require_engine=not text,
        ),
        failure_reward=failure_reward,
        mask_truncated=mask_truncated,
        constant_length=constant_length,
    )


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
    import_from_here()
    return rules_from_config(tables)


def _parse_toml(data: bytes) -> Any:
    # The standard library has it from 3.11 on, and the [server] extra what it was before.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return toml.loads(data.decode())


def _parameters(option: str, given: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE pairs; a value that is JSON is what that says, any other is text."""
    parameters: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.UsageError(f"{option} {pair!r} is no KEY=VALUE, such as gamma=0.95")
        if name in parameters:
            raise click.UsageError(f"{option} {name}=… was given twice")
        try:
            parameters[name] = json.loads(value)
        except (ValueError, RecursionError):
            parameters[name] = value
    return parameters


def _import(option: str, path: str) -> Any:
    module, _, attribute = path.partition(":")
    import_from_here()
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.UsageError(f"{option} {path} cannot be imported: {error}") from None
    if not callable(function):
        raise click.UsageError(f"{option} {path} is a {type(function).__name__}: give a function")
    return function
