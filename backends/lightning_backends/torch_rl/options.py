"""Every option of `torch_rl`, what it may be, and what it goes with.

An option whose default is None belongs to something else (a loss, a schedule), which has a default of its own
for it; given without what it belongs to, it is refused. docs/torch-rl.md has formulas and papers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from lightning_sdk.errors import ConfigError

LossName = Literal["ppo", "cispo", "gspo", "dr_grpo"]
AggregationName = Literal["rollout", "token", "sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to train. All numbers are finite."""

    # Rank of the adapters that are trained instead of all weights; None trains all. Needs peft.
    lora_rank: int | None = None
    # Their scale is alpha / rank; None: twice the rank.
    lora_alpha: float | None = None
    # Names of the modules that get one; None: every linear layer but the head.
    lora_targets: tuple[str, ...] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Of the arithmetic; trained weights are float32 always. "auto" is bfloat16 on a GPU that has it.
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    # Threads of torch on the CPU; None: torch's own choice.
    threads: int | None = None
    # "auto" is sdpa where the model has it.
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    # Compute activations again in the backward pass instead of keeping them.
    gradient_checkpointing: bool = False

    # What a call is worth: a name of `lightning_sdk.mdp.credit`, or a function as "module:function".
    credit: str = "broadcast"
    credit_params: Mapping[str, Any] = field(default_factory=dict)
    # "module:function", from a transition to what names its state; for gigpo and hgpo.
    state_key: str | None = None
    # What is subtracted: a name of `lightning_sdk.mdp.baseline`, or "module:function"; None: the credit's own.
    baseline: str | None = None
    baseline_params: Mapping[str, Any] = field(default_factory=dict)
    # The return of failed and truncated rollouts that got no reward.
    failure_reward: float | None = None
    # Keep truncated rollouts out of the loss, not out of the baseline.
    mask_truncated: bool = False
    # Pattern of the agents that are trained, such as "writer|rewriter*".
    agents: str | None = None
    # How many versions older than the policy a call may be; one that is older drops its whole group. None: the run's
    # `max_age`, by which rollouts are started.
    max_policy_age: int | None = None

    loss: LossName = "ppo"
    # The ratio is clipped to [1 - clip_low, 1 + clip_high].
    clip_low: float | None = None
    clip_high: float | None = None
    # Where the advantage is negative, a token's loss is at most this times it (ppo, dr_grpo).
    dual_clip: float | None = None
    # How the losses of tokens add up; None: "rollout", but for dr_grpo, which has its own.
    aggregation: AggregationName | None = None
    # The constant length of dr_grpo; None: the run's max_tokens.
    loss_length: int | None = None
    # Times the entropy, subtracted from the loss.
    entropy_coefficient: float = 0.0

    # Weight of a token for what sampler and trainer disagree about.
    correction: Literal["tis", "icepop", "none"] = "tis"
    # tis: the largest weight.
    correction_cap: float | None = None
    # icepop: weights outside are 0.
    correction_low: float | None = None
    correction_high: float | None = None
    # Leave a call out whose mean ("geometric") or summed ("product") disagreement is outside the bounds.
    sequence_mask: Literal["geometric", "product"] | None = None
    sequence_mask_low: float | None = None
    sequence_mask_high: float | None = None

    # Times the divergence from the reference, added to the loss.
    kl_coefficient: float = 0.0
    kl_estimator: Literal["k2", "k3"] | None = None
    # Directory of the reference model; None: the model that the policy starts from.
    reference: str | None = None

    # turn_gae: weight of the value loss, learning rate of the head, and whether its gradient reaches the trunk.
    value_coefficient: float | None = None
    value_learning_rate: float | None = None
    value_trains_trunk: bool | None = None

    # None: 1e-6, with adapters 5e-5.
    learning_rate: float | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    # Gradients are scaled down to this norm; 0 leaves them.
    max_grad_norm: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    # Optimiser steps in which the learning rate rises.
    warmup_steps: int = 0
    # linear, cosine: optimiser steps until the end, and the share of the learning rate that is left there.
    total_steps: int | None = None
    final_learning_rate: float | None = None
    # Rollouts of one optimiser step; None: all of a batch.
    rollouts_per_update: int | None = None
    # Times that a batch is gone through.
    epochs: int = 1

    # Tokens of one forward pass; a row that is longer is alone in one. None: 1,024 on the CPU, 8,192 on a GPU.
    micro_batch_tokens: int | None = None
    # Several rows in one forward pass.
    pack: bool = True
    # What rows begin with alike is computed once.
    share_prefixes: bool = True
    # Places of which the logits over the vocabulary exist at one time; more are computed again backward.
    head_tokens: int = 1024
    # Of the weights that are published and exported; "auto": float32 on the CPU, as the start on a GPU.
    publish_dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    def __post_init__(self) -> None:
        """Refuse what is out of bounds, and what would do nothing.

        Raises:
            ConfigError: it names the option, and says why.
        """
        _check_bounds(self)
        _check_belonging(self)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Options:
        """Options as a configuration file or the command line gives them.

        Raises:
            ConfigError: an option that there is not, of another type, or as `Options` does.
        """
        hints = get_type_hints(cls)
        for name in given:
            if name not in hints:
                near = difflib.get_close_matches(name, hints, n=1)
                hint = f"did you mean {near[0]}?" if near else "docs/torch-rl.md lists them"
                raise ConfigError(f"torch_rl has no option {name!r}; {hint}")
        return cls(**{name: _typed(name, value, hints[name]) for name, value in given.items()})

    @property
    def is_critic(self) -> bool:
        """Whether a value head is trained."""
        return self.credit == "turn_gae"


# name: least, greatest, and whether the least itself is allowed.
_BOUNDS: Final[Mapping[str, tuple[float, float, bool]]] = {
    "lora_rank": (1, math.inf, True),
    "lora_alpha": (0, math.inf, False),
    "threads": (1, math.inf, True),
    "max_policy_age": (0, math.inf, True),
    "clip_low": (0, 1, False),
    "clip_high": (0, math.inf, False),
    "dual_clip": (1, math.inf, False),
    "loss_length": (1, math.inf, True),
    "entropy_coefficient": (0, math.inf, True),
    "correction_cap": (0, math.inf, False),
    "correction_low": (0, 1, True),
    "correction_high": (1, math.inf, True),
    "sequence_mask_low": (0, 1, True),
    "sequence_mask_high": (1, math.inf, True),
    "kl_coefficient": (0, math.inf, True),
    "value_coefficient": (0, math.inf, False),
    "value_learning_rate": (0, math.inf, False),
    "learning_rate": (0, math.inf, False),
    "beta1": (0, 1, True),
    "beta2": (0, 1, True),
    "adam_epsilon": (0, math.inf, False),
    "weight_decay": (0, math.inf, True),
    "max_grad_norm": (0, math.inf, True),
    "warmup_steps": (0, math.inf, True),
    "total_steps": (1, math.inf, True),
    "final_learning_rate": (0, 1, True),
    "rollouts_per_update": (1, math.inf, True),
    "epochs": (1, math.inf, True),
    "micro_batch_tokens": (1, math.inf, True),
    "head_tokens": (1, math.inf, True),
}


def _check_bounds(options: Options) -> None:
    for each in fields(options):
        value = getattr(options, each.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{each.name} is {value}; give a finite number")
        if each.name in _BOUNDS and value is not None:
            least, most, inclusive = _BOUNDS[each.name]
            if not (least <= value <= most) or (value == least and not inclusive):
                above = f"{least:g} or more" if inclusive else f"more than {least:g}"
                below = f", {most:g} at the most" if math.isfinite(most) else ""
                raise ConfigError(f"{each.name} is {value}; give {above}{below}")
    if options.lora_targets == ():
        raise ConfigError("lora_targets is empty; name modules such as q_proj, or leave it out for all")


def _check_belonging(options: Options) -> None:
    """Refuse options that would do nothing in this combination."""
    needs = {
        "lora_alpha": (options.lora_rank is not None, "lora_rank"),
        "lora_targets": (options.lora_rank is not None, "lora_rank"),
        "state_key": (options.credit in ("gigpo", "hgpo"), "credit gigpo or hgpo"),
        "dual_clip": (options.loss in ("ppo", "dr_grpo"), "loss ppo or dr_grpo"),
        "loss_length": (options.loss == "dr_grpo", "loss dr_grpo"),
        "correction_cap": (options.correction == "tis", "correction tis"),
        "correction_low": (options.correction == "icepop", "correction icepop"),
        "correction_high": (options.correction == "icepop", "correction icepop"),
        "sequence_mask_low": (options.sequence_mask is not None, "sequence_mask"),
        "sequence_mask_high": (options.sequence_mask is not None, "sequence_mask"),
        "kl_estimator": (options.kl_coefficient > 0, "kl_coefficient above 0"),
        "reference": (options.kl_coefficient > 0, "kl_coefficient above 0"),
        "value_coefficient": (options.is_critic, "credit turn_gae"),
        "value_learning_rate": (options.is_critic, "credit turn_gae"),
        "value_trains_trunk": (options.is_critic, "credit turn_gae"),
        "total_steps": (options.schedule != "constant", "schedule linear or cosine"),
        "final_learning_rate": (options.schedule != "constant", "schedule linear or cosine"),
    }
    for name, (used, what) in needs.items():
        if getattr(options, name) is not None and not used:
            raise ConfigError(f"{name} does nothing without {what}; leave it out, or give that too")
    _check_loss(options)
    _check_credit(options)
    if options.schedule != "constant":
        if options.total_steps is None:
            raise ConfigError(
                f"schedule {options.schedule} needs total_steps, the optimiser steps of the run"
            )
        if options.warmup_steps >= options.total_steps:
            raise ConfigError(
                f"warmup_steps is {options.warmup_steps} and total_steps {options.total_steps}: "
                "warm up in fewer steps than there are"
            )
    if not options.pack:
        if options.share_prefixes:
            raise ConfigError(
                "share_prefixes does nothing without pack: rows in passes of their own share none; "
                "give share_prefixes=false too"
            )
        if options.micro_batch_tokens is not None:
            raise ConfigError("micro_batch_tokens does nothing without pack: each row has a pass of its own")


def _check_loss(options: Options) -> None:
    if options.loss != "dr_grpo":
        if options.baseline == "dr_grpo":
            raise ConfigError(
                "baseline dr_grpo asks for a loss without length normaliser: give loss=dr_grpo, or baseline=mean"
            )
        return
    if options.baseline not in (None, "dr_grpo"):
        raise ConfigError(
            f"loss dr_grpo goes with baseline dr_grpo, not {options.baseline}; leave the baseline out, "
            "or give another loss"
        )
    if options.credit in ("turn_gae", "gigpo", "hgpo"):
        raise ConfigError(
            f"credit {options.credit} is an advantage already, and loss dr_grpo subtracts the group's mean; "
            "give another loss"
        )
    if options.aggregation is not None:
        raise ConfigError(
            f"loss dr_grpo has an aggregation of its own, so aggregation={options.aggregation} does nothing; "
            "leave it out, or give loss=ppo"
        )


def _check_credit(options: Options) -> None:
    if options.credit == "precomputed":
        raise ConfigError(
            "credit precomputed takes its values from Python; give credit='module:function', "
            "a function of the call table, instead"
        )
    if options.credit in ("gigpo", "hgpo") and options.state_key is None:
        raise ConfigError(
            f"credit {options.credit} compares calls made in the same state; give state_key='module:function'"
        )
    for name in ("state_key", "values", "final_values"):
        if name in options.credit_params:
            remedy = "give the option state_key" if name == "state_key" else "the value head gives them"
            raise ConfigError(f"credit_params.{name} cannot be given in a table: {remedy}")


def _typed(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type of an option, where it is one."""
    kinds = get_args(hint) if type(None) in get_args(hint) else (hint,)
    for kind in kinds:
        if kind is type(None) and value is None:
            return None
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if kind in (bool, str) and isinstance(value, kind):
            return value
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if get_origin(kind) is tuple and isinstance(value, list | tuple):
            if all(isinstance(each, str) for each in value):
                return tuple(value)
        elif isinstance(get_origin(kind), type) and isinstance(value, Mapping):
            return dict(value)
    raise ConfigError(f"{name} is {value!r}; expected {_describe(kinds)}")


def _describe(kinds: tuple[Any, ...]) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "nothing",
    }
    said: list[str] = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            said.extend(repr(each) for each in get_args(kind))
        elif get_origin(kind) is tuple:
            said.append("a list of names")
        else:
            said.append(names.get(kind, "a table"))
    return " or ".join(said)
