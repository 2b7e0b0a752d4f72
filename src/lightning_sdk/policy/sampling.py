"""How an answer is sampled: what the request asked for, what the engine does, and what the record says of both.

The calls of training rollouts, and of those that shall be like them, are sampled as the policy is trained,
whatever the agent's code asks for: its temperature, penalties and the like would be another distribution than the
one that learns, and its fixed seed would make all rollouts of a group the same. How long an answer gets, where it
stops, how many there are and which tools it may call stay the request's.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lightning_sdk.plugins import SPLITS_SAMPLED_AS_TRAINED
from lightning_sdk.policy.engine import Constraint, SamplingParams
from lightning_sdk.policy.errors import context_exceeded, unsupported

if TYPE_CHECKING:
    from lightning_sdk.policy.policies import Policy

# Below this, dividing by the temperature leaves nothing but the likeliest token: taken, and recorded, as 0.
_GREEDY_BELOW: Final = 1e-5
# Of a seed that is drawn: every reader of JSON tells integers of so many bits exactly.
_SEED_BITS: Final = 53

# What shapes the distribution beside temperature and top-p, each with the values at which it does not.
SHAPING: Final[Mapping[str, tuple[Any, ...]]] = {
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "min_p": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (-1, 0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """What a request of any shape says of sampling; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    top_logprobs: int = 0
    # Those of `SHAPING` that it gives.
    shaping: Mapping[str, Any] = field(default_factory=dict)
    constraint: Constraint | None = None
    # The parameter that asks for the constraint.
    constraint_param: str = "response_format"
    # As the record shall tell it: the request's own names and values.
    told: Mapping[str, Any] = field(default_factory=dict)


def decide_sampling(
    asked: SamplingRequest, policy: Policy, split: str | None, prompt_tokens: int
) -> SamplingParams:
    """Every value decided.

    Args:
        asked: what the request says.
        policy: who answers.
        split: of the call's rollout, where it is known.
        prompt_tokens: how long the prompt is.

    Raises:
        ApiError: prompt and answer do not fit the context, or the engine cannot do what is asked.
    """
    engine = policy.engine
    room = engine.context_length - prompt_tokens
    if room < (asked.max_tokens or 1):
        raise context_exceeded(engine.context_length, prompt_tokens, asked.max_tokens)
    if asked.constraint is not None and not engine.constrains:
        raise unsupported(
            asked.constraint_param,
            "this policy's engine cannot constrain sampling; only leaving it out or plain text is accepted",
        )
    drawn = None if engine.seeds_itself else secrets.randbits(_SEED_BITS)
    if split in SPLITS_SAMPLED_AS_TRAINED:
        temperature, top_p, seed, shaping = policy.training.temperature, 1.0, drawn, {}
    else:
        temperature = 1.0 if asked.temperature is None else asked.temperature
        top_p = 1.0 if asked.top_p is None else asked.top_p
        seed = drawn if asked.seed is None else asked.seed
        shaping = _supported(asked.shaping, engine.shapes)
    return SamplingParams(
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
        top_p=top_p,
        seed=seed,
        max_tokens=asked.max_tokens or room,
        stop=asked.stop,
        top_logprobs=asked.top_logprobs,
        shaping=shaping,
        constraint=asked.constraint,
    )


def sampling_effective(asked: SamplingRequest, params: SamplingParams) -> dict[str, Any]:
    """What the engine did, every value said, also of what was asked for and not done."""
    effective: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "seed": params.seed,
        "n": asked.n or 1,
        "stop": list(params.stop),
        "max_tokens": params.max_tokens,
    }
    for name in asked.shaping:
        effective[name] = params.shaping.get(name, SHAPING[name][0])
    if params.constraint is not None:
        effective["constrained"] = params.constraint.kind
    return effective


def _supported(shaping: Mapping[str, Any], shapes: frozenset[str]) -> dict[str, Any]:
    kept = {}
    for name, value in shaping.items():
        if value in SHAPING[name]:
            continue
        if name not in shapes:
            allowed = " or ".join(["leaving it out", *map(repr, SHAPING[name])])
            raise unsupported(name, f"it would change the answer; only {allowed} is accepted")
        kept[name] = value
    return kept
