"""Groups of episodes to advantages, as the options say."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_backends.torch_rl.critic import evaluate
from lightning_backends.torch_rl.metrics import Tally
from lightning_backends.torch_rl.options import Options
from lightning_backends.torch_rl.policy import TrainedPolicy
from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp import Group
from lightning_sdk.mdp.advantages import Advantages, compute_advantages
from lightning_sdk.mdp.baseline import find_baseline
from lightning_sdk.mdp.credit import find_credit
from lightning_sdk.mdp.select import Selection


class Crediting:
    """Advantages of a run's groups. Names are resolved when it is made, so that a wrong one is found at once."""

    def __init__(self, options: Options, *, max_tokens: int | None, max_age: int | None) -> None:
        """Look everything up.

        Raises:
            ConfigError: a credit, baseline or function that there is not.
        """
        self._options = options
        self._max_tokens = max_tokens
        self._max_age = max_age if options.max_policy_age is None else options.max_policy_age
        self._credit = _named(options.credit, "credit")
        find_credit(self._credit)
        baseline = "dr_grpo" if options.loss == "dr_grpo" else options.baseline
        self._baseline = None if baseline is None else _named(baseline, "baseline")
        if self._baseline is not None:
            find_baseline(self._baseline)
        self._params: dict[str, Any] = dict(options.credit_params)
        if options.state_key is not None:
            self._params["state_key"] = import_function(options.state_key, "state_key")

    def advantages(
        self, groups: Sequence[Group], policies: Mapping[str, TrainedPolicy], tally: Tally
    ) -> tuple[Advantages, dict[tuple[str, int], float]]:
        """Advantages, and with a critic what the value before each call should be: its estimate and the advantage."""
        options = self._options
        selection = self._selection(policies)
        params = dict(self._params)
        values: Mapping[str, float] = {}
        if options.is_critic:
            known = evaluate(groups, policies, selection)
            groups, values = known.groups, known.values
            params.update(values=values, final_values=known.final_values)
            tally.add("rollouts_without_value", known.unknown_rollouts)
        advantages = compute_advantages(
            groups,
            credit=self._credit,
            baseline=self._baseline,
            credit_params=params,
            baseline_params=dict(options.baseline_params),
            selection=selection,
            failure_reward=options.failure_reward,
            mask_truncated=options.mask_truncated,
        )
        targets = {}
        if options.is_critic:
            for transition, credit in zip(
                advantages.table.transitions, advantages.credit_C.tolist(), strict=True
            ):
                if transition.call_id in values:
                    targets[transition.call_id, transition.choice] = credit + values[transition.call_id]
        return advantages, targets

    def _selection(self, policies: Mapping[str, TrainedPolicy]) -> Selection:
        age = self._max_age
        lengths = [policy.model.context_length for policy in policies.values()]
        limits = [limit for limit in (*lengths, self._max_tokens) if limit is not None]
        return Selection(
            agents=self._options.agents,
            policies="|".join(policies),
            max_tokens=min(limits, default=None),
            min_policy_version=None
            if age is None
            else {name: policy.version - age for name, policy in policies.items()},
        )


def import_function(name: str, option: str) -> Callable[..., Any]:
    """What "module:function" names.

    Raises:
        ConfigError: there is no such module or function.
    """
    module_name, separator, function_name = name.partition(":")
    if not separator:
        raise ConfigError(f"{option} is {name!r}; expected 'module:function'")
    try:
        found = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{option} {name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"{option} {name!r} is a {type(found).__name__}; expected a function")
    function: Callable[..., Any] = found
    return function


def _named(name: str, option: str) -> Any:
    return import_function(name, option) if ":" in name else name
