"""Which transitions are trained, and why the others are not.

Selection drops calls, never rewards: returns and credits are those of the whole rollout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.episode import Transition

# Reasons beside the transition's own `drop_reason`.
UNSELECTED_AGENT: Final = "unselected_agent"
OTHER_MODEL: Final = "other_model"  # no selected model, or no selected policy
OVER_LENGTH: Final = "over_length"
OFF_DISTRIBUTION: Final = "off_distribution"
POLICY_TOO_OLD: Final = "policy_too_old"

# Bars learning from tokens, not from text.
_ONLY_WITHOUT_IDS: Final = frozenset({"no_token_ids", "id_check_failed"})
# The policy's own distribution: what each setting must be, where it is told at all.
_OWN_SAMPLING: Final[Mapping[str, tuple[Any, ...]]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({}, []),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "constrained": (False,),
}
# Free text. Any other format constrains what can be sampled.
_FREE_FORMATS: Final = (None, "text")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which transitions are trained.

    Patterns are those of a shell, alternatives separated by `|`: `"writer|rewriter*"`. None takes everything. A
    call whose agent is not known has the name "".

    Attributes:
        agents: names of agents.
        models: names of models, as the request gives them.
        policies: names of policies; with a pattern, a call that our endpoint did not serve is none.
        max_tokens: of prompt and response together, where they are known.
        min_policy_version: the oldest version that may have sampled a call, for all policies or by policy. For a
            bound on the age, the current version minus it. One call that is too old drops its whole group (of that
            policy), since dropping calls alone would drop what is long. An unknown version is too old.
        require_engine: token ids must be the engine's. Without it what can be learned from as text is taken too.
    """

    agents: str | None = None
    models: str | None = None
    policies: str | None = None
    max_tokens: int | None = None
    min_policy_version: int | Mapping[str, int] | None = None
    require_engine: bool = True

    def __post_init__(self) -> None:
        """Refuse what would select nothing."""
        for name in ("agents", "models", "policies"):
            pattern = getattr(self, name)
            if pattern is not None and not (isinstance(pattern, str) and all(pattern.split("|"))):
                raise ConfigError(
                    f"{name}={pattern!r} is no name pattern; give one like 'writer|rewriter*', or None for all"
                )
        if self.max_tokens is not None and (type(self.max_tokens) is not int or self.max_tokens < 1):
            raise ConfigError(f"max_tokens is {self.max_tokens!r}; give at least 1, or None for no limit")
        oldest = self.min_policy_version
        for bound in oldest.values() if isinstance(oldest, Mapping) else () if oldest is None else (oldest,):
            if type(bound) is not int:
                raise ConfigError(
                    f"min_policy_version has {bound!r}; give a whole number, for all policies or by policy"
                )

    def oldest(self, policy: str | None) -> int | None:
        """The bound on the version of one policy; None where there is none."""
        if isinstance(self.min_policy_version, Mapping):
            return self.min_policy_version.get(policy or "")
        return self.min_policy_version


@dataclass(frozen=True, slots=True)
class Selected:
    """A verdict a transition."""

    # Why it is not trained; None where it is.
    reasons: tuple[str | None, ...]
    # "other_model" where it is another model's, so part of the environment; None elsewhere.
    foreign: tuple[str | None, ...]


def select(transitions: Sequence[Transition], selection: Selection, group_C: Sequence[int]) -> Selected:
    """Decide for each transition. What it is comes first, then what is wrong with it, then how old it is.

    Args:
        transitions: C of them.
        selection: what is wanted.
        group_C: the group of each transition.
    """
    foreign = tuple(_foreign(transition, selection) for transition in transitions)
    reasons = [
        other or _reason(transition, selection)
        for other, transition in zip(foreign, transitions, strict=True)
    ]
    aged = {
        (group, transition.policy)
        for group, transition, reason in zip(group_C, transitions, reasons, strict=True)
        if reason is None and _too_old(transition, selection)
    }
    return Selected(
        reasons=tuple(
            POLICY_TOO_OLD if reason is None and (group, transition.policy) in aged else reason
            for group, transition, reason in zip(group_C, transitions, reasons, strict=True)
        ),
        foreign=foreign,
    )


def _foreign(transition: Transition, selection: Selection) -> str | None:
    ours = _matches(transition.model, selection.models) and _matches(transition.policy, selection.policies)
    return None if ours else OTHER_MODEL


def _reason(transition: Transition, selection: Selection) -> str | None:
    if not _matches(transition.agent, selection.agents):
        return UNSELECTED_AGENT
    dropped = transition.drop_reason
    if dropped is not None and (selection.require_engine or dropped not in _ONLY_WITHOUT_IDS):
        return dropped
    if selection.require_engine and transition.fidelity != "engine":
        return "no_token_ids"
    if not is_on_distribution(transition):
        return OFF_DISTRIBUTION
    if selection.max_tokens is not None and _tokens(transition) > selection.max_tokens:
        return OVER_LENGTH
    return None


def is_on_distribution(transition: Transition) -> bool:
    """Whether the call was sampled from the policy as it is, at a temperature above 0.

    Read from the effective sampling, else from what was requested; a setting that neither tells is taken as the
    policy's own. A temperature that is no number is not trusted. A response format other than text means that a
    grammar may have decided.
    """
    sampling = transition.sampling
    known = {**(sampling.get("requested") or {}), **(sampling.get("effective") or {})}
    temperature = known.get("temperature")
    if temperature is not None and not (isinstance(temperature, int | float) and temperature > 0):
        return False
    for name, value in known.items():
        if value is not None and name in _OWN_SAMPLING and value not in _OWN_SAMPLING[name]:
            return False
    wanted = transition.observation.get("response_format")
    return (wanted.get("type") if isinstance(wanted, Mapping) else wanted) in _FREE_FORMATS


def _matches(name: str | None, pattern: str | None) -> bool:
    return pattern is None or any(fnmatchcase(name or "", each.strip()) for each in pattern.split("|"))


def _tokens(transition: Transition) -> int:
    return len(transition.prompt_token_ids or ()) + len(transition.response_token_ids or ())


def _too_old(transition: Transition, selection: Selection) -> bool:
    oldest = selection.oldest(transition.policy)
    if oldest is None:
        return False
    return transition.policy_version is None or transition.policy_version < oldest
