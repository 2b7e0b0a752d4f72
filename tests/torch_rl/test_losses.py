"""Losses of three tokens, worked by hand. Ratios are 1.5, 0.5 and 1 unless a test says otherwise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the [torch] extra")

from lightning_backends.torch_rl.aggregation import call_weights, token_weights  # noqa: E402
from lightning_backends.torch_rl.corrections import correct  # noqa: E402
from lightning_backends.torch_rl.losses import (  # noqa: E402
    LOSSES,
    Clip,
    TokenTerms,
    cispo,
    clip_of,
    divergence,
    gspo,
    ppo,
)
from lightning_backends.torch_rl.options import Options  # noqa: E402
from lightning_backends.torch_rl.samples import Sample  # noqa: E402

RATIOS = (1.5, 0.5, 1.0)


def terms(
    advantages: tuple[float, ...],
    ratios: tuple[float, ...] = RATIOS,
    corrections: tuple[float, ...] = (1.0, 1.0, 1.0),
    calls: tuple[int, ...] = (0, 0, 0),
) -> TokenTerms:
    """Old log probabilities are -1; the policy's are the logarithms of the ratios above them."""
    ratio = torch.tensor(ratios, dtype=torch.float64)
    return TokenTerms(
        logprob_K=(ratio.log() - 1).requires_grad_(),
        old_K=torch.full_like(ratio, -1.0),
        advantage_K=torch.tensor(advantages, dtype=torch.float64),
        correction_K=torch.tensor(corrections, dtype=torch.float64),
        call_K=torch.tensor(calls),
        calls=max(calls) + 1,
    )


def gradient(found: Any, given: TokenTerms) -> list[float]:
    (grad,) = torch.autograd.grad(found.loss_K.sum(), given.logprob_K)
    return grad.tolist()


def test_ppo() -> None:
    given = terms((2.0, 2.0, -1.0))
    found = ppo(given, Clip(0.2, 0.28, 3.0))
    # token 1: A > 0 and 1.5 > 1.28:  -min(1.5 * 2, 1.28 * 2) = -2.56, clipped, no gradient
    # token 2: A > 0 and 0.5 < 0.8:   -min(0.5 * 2, 0.8 * 2)  = -1,    d/dlogp = -r A = -1
    # token 3: A < 0 and r = 1:       -min(1 * -1, 1 * -1)    =  1,    d/dlogp = -1 * -1 = 1
    assert found.loss_K.tolist() == pytest.approx([-2.56, -1.0, 1.0])
    assert found.clipped_K.tolist() == [True, False, False]
    assert gradient(found, given) == pytest.approx([0.0, -1.0, 1.0])


def test_ppo_clips_below_where_the_advantage_is_negative() -> None:
    given = terms((-2.0, -2.0, -1.0))
    found = ppo(given, Clip(0.2, 0.28, 3.0))
    # token 1: -min(1.5 * -2, 1.28 * -2) = 3,     not clipped: the bad token became likelier
    # token 2: -min(0.5 * -2, 0.8 * -2)  = 1.6,   clipped: it is unlikely enough
    assert found.loss_K.tolist() == pytest.approx([3.0, 1.6, 1.0])
    assert found.clipped_K.tolist() == [False, True, False]


def test_dual_clip_bounds_the_loss_of_a_bad_token_that_became_likely() -> None:
    given = terms((-2.0, 2.0, -1.0), ratios=(5.0, 5.0, 2.9))
    found = ppo(given, Clip(0.2, 0.28, 3.0))
    # token 1: -max(min(5 * -2, 1.28 * -2), 3 * -2) = -max(-10, -6) = 6, no gradient
    # token 2: A > 0, so no dual clip: -1.28 * 2 = -2.56
    # token 3: -max(-2.9, -3) = 2.9, below the bound
    assert found.loss_K.tolist() == pytest.approx([6.0, -2.56, 2.9])
    assert found.clipped_K.tolist() == [True, True, False]
    assert gradient(found, given) == pytest.approx([0.0, 0.0, 2.9])


def test_cispo_clips_the_weight_and_keeps_every_gradient() -> None:
    given = terms((2.0, 2.0, -1.0))
    found = cispo(given, Clip(None, 0.28))
    # -min(r, 1.28) A log pi, and d/dlogp = -min(r, 1.28) A
    # token 1: -1.28 * 2 * (ln 1.5 - 1); token 2: -0.5 * 2 * (ln 0.5 - 1); token 3: 1 * (0 - 1)
    expected = [-2.56 * (math.log(1.5) - 1), -1.0 * (math.log(0.5) - 1), -1.0]
    assert found.loss_K.tolist() == pytest.approx(expected)
    assert gradient(found, given) == pytest.approx([-2.56, -1.0, 1.0])
    assert found.clipped_K.tolist() == [True, False, False]


def test_gspo_has_one_ratio_a_call_and_a_gradient_a_token() -> None:
    given = terms((2.0, 2.0, 2.0))
    found = gspo(given, Clip(0.5, 0.5))
    # s = exp((ln 1.5 + ln 0.5 + ln 1) / 3) = 0.75^(1/3) = 0.90856; within [0.5, 1.5]
    # loss = -s A for each token; d/dlogp_t = -s A, since s r_t / sg(r_t) has the derivative s
    s = 0.75 ** (1 / 3)
    assert found.loss_K.tolist() == pytest.approx([-2 * s] * 3)
    assert gradient(found, given) == pytest.approx([-2 * s] * 3)
    # By default s may be from 0.9997 to 1.0004. Below it a good token still counts, a bad one no more:
    # -min(0.90856 * -2, 0.9997 * -2) = 1.9994
    bad = gspo(terms((-2.0, -2.0, -2.0)), clip_of(Options(loss="gspo")))
    assert bad.loss_K.tolist() == pytest.approx([1.9994] * 3)
    assert bad.clipped_K.all()


def test_gspo_is_by_call() -> None:
    given = terms((2.0, 2.0, 2.0), calls=(0, 1, 1))
    # call 0: s = 1.5; call 1: s = (0.5 * 1)^(1/2)
    found = gspo(given, Clip(0.9, 0.9))
    assert found.loss_K.tolist() == pytest.approx([-3.0, -2 * math.sqrt(0.5), -2 * math.sqrt(0.5)])


def test_dr_grpo_is_ppo_with_an_aggregation_of_its_own() -> None:
    assert LOSSES["dr_grpo"] is ppo
    samples = [sample(0, (2, 1)), sample(1, (1,))]
    # R = 2 rollouts, L = 10: every token 1 / (2 * 10), however many its rollout has
    weights = token_weights(samples, Options(loss="dr_grpo", loss_length=10), None)
    assert [each.tolist() for each in weights] == [[0.05, 0.05, 0.05], [0.05]]
    # -(2 + 2 - 1) / 20 with advantages 2, 2, -1 on policy
    given = terms((2.0, 2.0, -1.0), ratios=(1.0, 1.0, 1.0))
    loss = ppo(given, clip_of(Options(loss="dr_grpo"))).loss_K
    assert float((loss * torch.from_numpy(weights[0])).sum()) == pytest.approx(-0.15)
    from_run = token_weights(samples, Options(loss="dr_grpo"), 20)
    assert from_run[1].tolist() == [0.025]


def sample(rollout: int, tokens_by_call: tuple[int, ...]) -> Sample:
    tokens = sum(tokens_by_call)
    return Sample(
        rollout=rollout,
        input_T=np.zeros(tokens, dtype=np.int32),
        place_K=np.arange(1, tokens + 1),
        token_K=np.zeros(tokens, dtype=np.int64),
        call_K=np.repeat(np.arange(len(tokens_by_call)), tokens_by_call),
        advantage_K=np.ones(tokens),
        behaviour_K=np.zeros(tokens),
        target_C=np.zeros(len(tokens_by_call)),
    )


def test_tokens_add_up_by_rollout_by_token_or_by_call() -> None:
    # rollout 0 in two rows, of calls with 2 and 1 and with 3 tokens; rollout 1 has a call with 2
    samples = [sample(0, (2, 1)), sample(0, (3,)), sample(1, (2,))]
    by_rollout = token_weights(samples, Options(), None)
    # 1/2 * 1/6 and 1/2 * 1/2
    assert [each.tolist() for each in by_rollout] == [[1 / 12] * 3, [1 / 12] * 3, [1 / 4] * 2]
    by_token = token_weights(samples, Options(aggregation="token"), None)
    assert np.concatenate(by_token).tolist() == [1 / 8] * 8
    by_call = token_weights(samples, Options(aggregation="sequence"), None)
    # 4 calls: 1/4 over the tokens of each
    expected = [1 / 8, 1 / 8, 1 / 4, 1 / 12, 1 / 12, 1 / 12, 1 / 8, 1 / 8]
    assert np.concatenate(by_call).tolist() == pytest.approx(expected)
    for weights in (by_rollout, by_token, by_call):
        assert float(np.concatenate(weights).sum()) == pytest.approx(1.0)
    # values: 1/2 over the three calls of rollout 0, 1/2 for that of rollout 1
    assert np.concatenate(call_weights(samples)).tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def correction(rhos: tuple[float, ...], calls: tuple[int, ...] = (0, 0, 0), **options: Any) -> list[float]:
    rho = torch.tensor(rhos, dtype=torch.float64)
    old = torch.full_like(rho, -1.0)
    found = correct(old, old - rho.log(), torch.tensor(calls), max(calls) + 1, Options(**options))
    return found.tolist()


def test_tis_cuts_large_weights() -> None:
    assert correction((3.0, 0.5, 1.0)) == pytest.approx([2.0, 0.5, 1.0])
    assert correction((3.0, 0.5, 1.0), correction_cap=4.0) == pytest.approx([3.0, 0.5, 1.0])


def test_icepop_leaves_out_what_is_far_off() -> None:
    # within [0.5, 5]
    assert correction((6.0, 0.4, 1.5), correction="icepop") == pytest.approx([0.0, 0.0, 1.5])


def test_none_leaves_every_weight_at_one() -> None:
    assert correction((6.0, 0.4, 1.5), correction="none") == [1.0, 1.0, 1.0]


def test_a_token_whose_sampler_is_not_known_weighs_one() -> None:
    old = torch.tensor([-1.0, -1.0])
    behaviour = torch.tensor([math.nan, -2.0])
    found = correct(old, behaviour, torch.tensor([0, 0]), 1, Options())
    assert found.tolist() == pytest.approx([1.0, 2.0])


def test_sequence_masks_are_by_call() -> None:
    # call 0: rho 1.02, 0.99: geometric mean 1.00489, product 1.0098; call 1: rho 1.05
    rhos, calls = (1.02, 0.99, 1.05), (0, 0, 1)
    assert correction(rhos, calls, sequence_mask="geometric") == pytest.approx([1.02, 0.99, 0.0])
    assert correction(rhos, calls, sequence_mask="product") == pytest.approx([1.02, 0.99, 1.05])
    tight = {"sequence_mask_low": 0.99, "sequence_mask_high": 1.009}
    assert correction(rhos, calls, sequence_mask="product", **tight) == [0.0, 0.0, 0.0]


def test_a_correction_is_a_factor_of_the_loss() -> None:
    for loss, clip in ((ppo, Clip(0.2, 0.28, 3.0)), (cispo, Clip(None, 0.28)), (gspo, Clip(0.5, 0.5))):
        plain = loss(terms((2.0, 2.0, -1.0)), clip).loss_K
        weighed = loss(terms((2.0, 2.0, -1.0), corrections=(0.5, 0.0, 2.0)), clip).loss_K
        assert weighed.tolist() == pytest.approx([0.5 * plain[0].item(), 0.0, 2 * plain[2].item()])


def test_divergences() -> None:
    policy, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-2.0, -2.0])
    # d = 1 and 0: k2 = 1/2, 0; k3 = e^-1 + 1 - 1 = 1/e, 0
    assert divergence(policy, reference, "k2").tolist() == pytest.approx([0.5, 0.0])
    assert divergence(policy, reference, "k3").tolist() == pytest.approx([math.exp(-1), 0.0])
