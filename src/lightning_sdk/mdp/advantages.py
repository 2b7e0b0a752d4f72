"""Episodes to advantages: the call table, a credit, a baseline, and who is trained."""

from __future__ import annotations

import inspect
import numbers
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.baseline import Aggregation, Baseline, Baselined, BaselineFunction, find_baseline
from lightning_sdk.mdp.credit import Credit, CreditFunction, find_credit
from lightning_sdk.mdp.episode import Group
from lightning_sdk.mdp.select import Selection
from lightning_sdk.mdp.table import CallTable, build_table, count_rollouts

__all__ = ["Advantages", "Aggregation", "compute_advantages"]


@dataclass(frozen=True, slots=True)
class Advantages:
    """What each call of some groups is worth, and how that came about.

    `advantage_C = (credit_C - baseline_C) / scale_C`, all float64. NaN where there is none: no decision, no reward.
    """

    table: CallTable
    # Names; a user's function goes by its own.
    credit: str
    baseline: str
    credit_C: NDArray[np.float64]
    baseline_C: NDArray[np.float64]
    scale_C: NDArray[np.float64]
    advantage_C: NDArray[np.float64]
    # The transition's tokens are trained; advantage_C is finite there.
    in_loss_C: NDArray[np.bool_]
    # Why they are not: the selection's reason, else the rollout's, else the baseline's ("no_variance", "lone").
    reason_C: tuple[str | None, ...]
    # What the baseline's name promises of the loss.
    aggregation: Aggregation
    # Rollouts, calls (transitions), groups, and how many are not trained for which reason.
    counts: Mapping[str, int]


def compute_advantages(
    groups: Iterable[Group],
    *,
    credit: str | CreditFunction = "broadcast",
    baseline: str | BaselineFunction | None = None,
    credit_params: Mapping[str, Any] | None = None,
    baseline_params: Mapping[str, Any] | None = None,
    selection: Selection | None = None,
    failure_reward: float | None = None,
    mask_truncated: bool = False,
) -> Advantages:
    """Give every call its advantage.

    Args:
        groups: each group once, of rollouts that are complete.
        credit: a name (see `lightning_sdk.mdp.credit`), or a function of the table to an array (C,).
        baseline: a name (see `lightning_sdk.mdp.baseline`), or a function of the table and the credits to a
            `Baselined` or an array (C,) of advantages. None is the credit's own: `rloo`, but `none` for `turn_gae`,
            `gigpo`, `hgpo` and `precomputed`.
        credit_params: keyword arguments of the credit.
        baseline_params: keyword arguments of the baseline.
        selection: which transitions are trained; by default every one that can be.
        failure_reward: the return of failed and truncated rollouts that got no reward.
        mask_truncated: take truncated rollouts out of the loss, not out of the baseline.

    Raises:
        ConfigError: a name, a parameter or a combination that there is not; a function that gives another shape, or
            NaN or infinity where a number is needed.
    """
    credited = find_credit(credit)
    based = find_baseline(credited.baseline if baseline is None else baseline)
    if credited.is_advantage and based.name in _SUBTRACTING:
        raise ConfigError(
            f"credit {credited.name!r} is an advantage already, and baseline {based.name!r} would be subtracted "
            "a second time; leave the baseline out"
        )
    table = build_table(
        groups,
        selection=selection,
        failure_reward=failure_reward,
        mask_truncated=mask_truncated,
        require_reward=credited.needs_reward,
    )
    value_C = _credits(table, credited, based, credit_params or {})
    params = dict(baseline_params or {})
    if credited.is_shared and based.compares:
        params.setdefault("lone_agent", "group")
    if credited.is_advantage and based.name == "none":
        params.setdefault("skip_zero", True)
    result = _advantages(table, value_C, based, params)
    reasons = [
        selected or table.reason_E[episode] or skipped
        for selected, episode, skipped in zip(
            table.reason_C, table.episode_C.tolist(), result.reason_C, strict=True
        )
    ]
    in_loss_C = np.array([reason is None for reason in reasons], dtype=np.bool_)
    _refuse_unknown(table, result.advantage_C, in_loss_C, f"baseline {based.name!r}")
    return Advantages(
        table=table,
        credit=credited.name,
        baseline=based.name,
        credit_C=value_C,
        baseline_C=result.baseline_C,
        scale_C=result.scale_C,
        advantage_C=result.advantage_C,
        in_loss_C=in_loss_C,
        reason_C=tuple(reasons),
        aggregation=based.aggregation,
        counts=_count(table, reasons, result),
    )


# Whitening (`reinforce++`) may follow an advantage, as PPO does it; a group's mean may not.
_SUBTRACTING = frozenset({"rloo", "mean", "grpo", "dr_grpo", "dr_mas", "max_rl", "reinforce++_baseline"})


_NO_FUNCTION: Final = (
    "give a name, or a function of the table (a baseline: and of the credits) and the parameters"
)


def _credits(
    table: CallTable, credit: Credit, baseline: Baseline, params: Mapping[str, Any]
) -> NDArray[np.float64]:
    value_C = _call(f"credit {credit.name!r}", credit.function, (table,), params)
    value_C = _as_column(table, value_C, f"credit {credit.name!r}")
    needed = table.decision_C & table.in_baseline_E[table.episode_C]
    if not baseline.compares:  # nothing is compared, so only what is trained needs a value
        needed = table.selected_C & table.in_loss_E[table.episode_C]
    _refuse_unknown(table, value_C, needed, f"credit {credit.name!r}")
    return value_C


def _advantages(
    table: CallTable, value_C: NDArray[np.float64], baseline: Baseline, params: Mapping[str, Any]
) -> Baselined:
    name = f"baseline {baseline.name!r}"
    result = _call(name, baseline.function, (table, value_C), params)
    if isinstance(result, Baselined):
        reasons = result.reason_C
        if not isinstance(reasons, Sequence) or len(reasons) != table.calls:
            raise ConfigError(
                f"{name} gave a reason_C of another length; expected a tuple of {table.calls}, None or why each "
                "transition is skipped"
            )
        return replace(
            result,
            advantage_C=_as_column(table, result.advantage_C, f"{name}, as advantage_C,"),
            baseline_C=_as_column(table, result.baseline_C, f"{name}, as baseline_C,"),
            scale_C=_as_column(table, result.scale_C, f"{name}, as scale_C,"),
        )
    advantage_C = _as_column(table, result, name)
    return Baselined(
        advantage_C=advantage_C,
        baseline_C=value_C - advantage_C,
        scale_C=np.ones(table.calls),
        reason_C=(None,) * table.calls,
        skipped=(),
        counts={},
    )


def _call(
    name: str, function: Callable[..., Any], arguments: tuple[Any, ...], params: Mapping[str, Any]
) -> Any:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # no function, or one that was written in C
        raise ConfigError(f"{name} is {function!r}; {_NO_FUNCTION}") from None
    taken = list(signature.parameters.values())[len(arguments) :]
    if not any(each.kind is each.VAR_KEYWORD for each in taken):
        names = [each.name for each in taken]
        unknown = [given for given in params if given not in names]
        if unknown:
            takes = f"it takes {', '.join(names)}" if names else "it takes none"
            raise ConfigError(f"{name} has no parameter {unknown[0]!r}; {takes}")
        for each in taken:
            _check_kind(name, each, params.get(each.name, each.default))
    try:
        signature.bind(*arguments, **params)
    except TypeError as error:
        raise ConfigError(f"{name} cannot be called ({error}); {_NO_FUNCTION}") from None
    try:
        # What is no finite number in the end is refused by name.
        with np.errstate(over="ignore", invalid="ignore"):
            return function(*arguments, **params)
    except OverflowError as error:
        raise ConfigError(
            f"{name} got beyond the largest number; give smaller rewards or parameters"
        ) from error


def _check_kind(name: str, parameter: inspect.Parameter, given: Any) -> None:
    """Refuse what is no number for a number, and no truth value for one: parameters come from tables and texts."""
    kinds: Mapping[type, tuple[type, str]] = {
        bool: (bool, "true or false"),
        int: (numbers.Integral, "a whole number"),
        float: (numbers.Real, "a number"),
    }
    if type(parameter.default) not in kinds:
        return
    kind, wanted = kinds[type(parameter.default)]
    if not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
        raise ConfigError(f"{name} has {parameter.name}={given!r}; give {wanted}")


def _as_column(table: CallTable, value: Any, name: str) -> NDArray[np.float64]:
    try:
        found = np.asarray(value)
        if np.iscomplexobj(found):  # what is not real would be dropped without a word
            raise TypeError
        column = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{name} gave {type(value).__name__}; expected an array of {table.calls} numbers"
        ) from None
    if column.shape != (table.calls,):
        raise ConfigError(
            f"{name} gave an array of shape {column.shape}; expected ({table.calls},), one a transition"
        )
    return column


def _refuse_unknown(
    table: CallTable, value_C: NDArray[np.float64], needed_C: NDArray[np.bool_], name: str
) -> None:
    missing = np.flatnonzero(needed_C & ~np.isfinite(value_C))
    if missing.size:
        row = int(missing[0])
        raise ConfigError(
            f"{name} gave {value_C[row]} for {table.name_of(row)} ({missing.size} such); "
            "expected a finite number for every call that counts"
        )


def _count(table: CallTable, reasons: Iterable[str | None], result: Baselined) -> dict[str, int]:
    counts = Counter(count_rollouts(table))
    counts.update(result.counts)
    trained = Counter(reasons)
    counts["calls_trained"] = trained.pop(None, 0)
    counts.update({f"calls_{reason}": times for reason, times in trained.items()})
    return dict(counts)
