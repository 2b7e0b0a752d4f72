"""The gradient of an update does not depend on how its tokens are laid out. In float64, on a tiny Llama.

1. Merged rows give what calls of their own give.
2. Packing, the size of a forward pass, shared prefixes, the pieces of the head: each changes nothing.
3. Nor does the number of rows that a rollout is cut into, for every loss, aggregation, correction and mask.
4. What is computed over a packed tree is what plain passes of one row compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the [torch] extra")

from lightning_backends.torch_rl.metrics import Tally  # noqa: E402
from lightning_backends.torch_rl.options import Options  # noqa: E402
from lightning_backends.torch_rl.policy import TrainedPolicy  # noqa: E402
from lightning_backends.torch_rl.samples import make_samples  # noqa: E402
from lightning_backends.torch_rl.update import Updater  # noqa: E402
from lightning_sdk.mdp.advantages import compute_advantages  # noqa: E402
from lightning_sdk.mdp.sequences import Row, build_rows, split_row  # noqa: E402
from support.training import make_groups, save_llama, use_float64  # noqa: E402

pytestmark = pytest.mark.model

LOSSES: list[dict[str, Any]] = [
    {"loss": "ppo"},
    {"loss": "ppo", "aggregation": "token", "correction": "icepop"},
    {
        "loss": "ppo",
        "aggregation": "sequence",
        "sequence_mask": "geometric",
        "sequence_mask_low": 0.3,
        "sequence_mask_high": 2.0,
    },
    {"loss": "cispo", "sequence_mask": "product", "sequence_mask_low": 0.01, "sequence_mask_high": 9.0},
    {"loss": "gspo", "correction": "none"},
    {"loss": "gspo", "aggregation": "sequence", "clip_low": 0.3, "clip_high": 0.3},
    {"loss": "dr_grpo"},
    {"loss": "ppo", "entropy_coefficient": 0.1, "kl_coefficient": 0.2},
    {"loss": "ppo", "credit": "turn_gae", "value_trains_trunk": True},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Of six rollouts in two groups, of several turns each: nine calls a group in three rows."""
    rows = build_rows(compute_advantages(make_groups()))
    assert len(rows) == 6
    assert max(len(row.calls) for row in rows) == 4
    return rows


def as_calls(rows: Sequence[Row]) -> list[Row]:
    """The same with a row a call, as if nothing had been merged."""
    cut = []
    for row in rows:
        for at, call in enumerate(split_row(row)):
            stop = len(call.prompt_token_ids_P) + len(call.response_token_ids_S)
            trained = row.call_T[:stop] == at
            cut.append(
                replace(
                    row,
                    token_ids_T=row.token_ids_T[:stop],
                    loss_mask_T=trained,
                    behaviour_logprobs_T=np.where(trained, row.behaviour_logprobs_T[:stop], np.nan),
                    advantages_T=np.where(trained, row.advantages_T[:stop], 0),
                    policy_versions_T=row.policy_versions_T[:stop],
                    call_T=np.where(trained, 0, -1).astype(np.int32),
                    calls=(row.calls[at],),
                )
            )
    return cut


def gradient(directory: Path, rows: Sequence[Row], **options: Any) -> dict[str, Any]:
    """Of the second update of a policy whose first has moved it off what sampled, with the loss under "loss"."""
    policy = TrainedPolicy("tiny", directory, Options(**{"learning_rate": 1e-3, **options}))
    use_float64(policy.model.network)
    if policy.reference is not None:
        use_float64(policy.reference.model.network)
    if policy.value_head is not None:
        policy.value_head.double()
    draw = np.random.default_rng(7)
    targets = {
        call: float(draw.standard_normal()) for call in sorted({call for row in rows for call in row.calls})
    }
    samples = make_samples(rows, targets)
    updater = Updater(policy, temperature=0.9, max_tokens=64)
    updater.prepare(samples, old=True)
    for sample in samples:
        assert sample.old_K is not None
        # What the weights were before: a ratio for each token that its place in the rollout decides.
        sample.old_K = sample.old_K - 0.4 * np.sin(sample.token_K + sample.place_K)
    loss = updater.accumulate(samples, Tally(), first=False)
    found = {name: each.grad.clone() for name, each in policy.trained().items() if each.grad is not None}
    return {**found, "loss": torch.tensor(loss)}


def assert_same(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-8) -> None:
    assert one.keys() == other.keys()
    assert max(float(value.abs().max()) for value in one.values()) > 1e-3
    differences = {name: float((value - other[name]).abs().max()) for name, value in one.items()}
    assert max(differences.values()) < tolerance


@pytest.mark.parametrize("options", LOSSES, ids=lambda options: "-".join(map(str, options.values())))
def test_merged_rows_give_the_gradient_of_separate_calls(
    directory: Path, rows: list[Row], options: dict[str, Any]
) -> None:
    merged = gradient(directory, rows, **options)
    apart = gradient(directory, as_calls(rows), pack=False, share_prefixes=False, **options)
    assert_same(merged, apart)


@pytest.mark.parametrize(
    "layout",
    [
        {"pack": False, "share_prefixes": False},
        {"share_prefixes": False},
        {"micro_batch_tokens": 64},
        {"micro_batch_tokens": 64, "share_prefixes": False},
        {"micro_batch_tokens": 1},
        {"head_tokens": 3},
        {"attention": "eager"},
        {"gradient_checkpointing": True},
    ],
    ids=str,
)
def test_the_layout_changes_no_gradient(directory: Path, rows: list[Row], layout: dict[str, Any]) -> None:
    # eager attention takes its softmax in float32
    tolerance = 1e-5 if "attention" in layout else 1e-8
    assert_same(gradient(directory, rows), gradient(directory, rows, **layout), tolerance)


@pytest.mark.parametrize("cut", ["first", "every second"])
def test_a_rollout_in_more_rows_weighs_the_same(directory: Path, rows: list[Row], cut: str) -> None:
    chosen = rows[:1] if cut == "first" else rows[::2]
    others = [row for row in rows if not any(row is each for each in chosen)]
    assert_same(gradient(directory, rows), gradient(directory, [*others, *as_calls(chosen)]))


def test_the_order_of_rows_changes_nothing(directory: Path, rows: list[Row]) -> None:
    assert_same(gradient(directory, rows), gradient(directory, rows[::-1]))


def test_the_gradient_is_that_of_plain_passes_and_the_formula(directory: Path, rows: list[Row]) -> None:
    """On policy, ppo without correction is -(1/R) sum_i (1/N_i) sum_t A_t log pi(t)."""
    from transformers import AutoModelForCausalLM

    options = Options(correction="none")
    policy = TrainedPolicy("tiny", directory, options)
    use_float64(policy.model.network)
    samples = make_samples(rows)
    Updater(policy, temperature=0.7, max_tokens=None).accumulate(samples, Tally(), first=True)

    model = AutoModelForCausalLM.from_pretrained(directory)
    use_float64(model)
    loss = torch.zeros((), dtype=torch.float64)
    for row in rows:
        logits = model(torch.from_numpy(row.token_ids_T.astype(np.int64))[None]).logits[0] / 0.7
        for at in np.flatnonzero(row.loss_mask_T):
            logprob = torch.log_softmax(logits[at - 1], -1)[int(row.token_ids_T[at])]
            # Each rollout is one row here.
            loss = loss - row.advantages_T[at] * logprob / (len(rows) * row.trained_tokens)
    loss.backward()
    plain = dict(model.named_parameters())
    assert_same(
        {name: each.grad for name, each in policy.trained().items()},
        {name: plain[name].grad for name in policy.trained()},
    )
