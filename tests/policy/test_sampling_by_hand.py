"""One token from logits, against distributions worked out by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the [torch] extra")

from lightning_sdk.policy.engine import SamplingParams  # noqa: E402
from lightning_sdk.policy.transformers_engine.sampling import make_generator, sample  # noqa: E402

pytestmark = pytest.mark.model

# Probabilities 0.5, 0.3, 0.2 at temperature 1.
LOGITS = [math.log(0.5), math.log(0.3), math.log(0.2)]


def _params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "top_p": 1.0, "seed": 0, "max_tokens": 1, **fields})


def _shares(draws: int = 4000, **fields: Any) -> dict[int, float]:
    params = _params(**fields)
    rows = torch.tensor([LOGITS] * draws)
    generator = make_generator(1, 0)
    tokens = sample(rows, [params] * draws, [generator] * draws)
    return {token: count / draws for token, count in Counter(token.id for token in tokens).items()}


def _one(logits: list[float], **fields: Any) -> Any:
    return sample(torch.tensor([logits]), [_params(**fields)], [make_generator(0, 0)])[0]


def test_tokens_come_as_often_as_they_are_likely() -> None:
    assert _shares() == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2}, abs=0.03)


def test_a_temperature_sharpens() -> None:
    # At 0.5 probabilities go as their squares: 25, 9, 4 of 38.
    assert _shares(temperature=0.5) == pytest.approx({0: 25 / 38, 1: 9 / 38, 2: 4 / 38}, abs=0.03)


@pytest.mark.parametrize(
    ("top_p", "shares"),
    [(0.4, {0: 1.0}), (0.6, {0: 5 / 8, 1: 3 / 8}), (0.81, {0: 0.5, 1: 0.3, 2: 0.2})],
)
def test_top_p_keeps_the_likeliest_until_they_reach_it(top_p: float, shares: dict[int, float]) -> None:
    assert _shares(top_p=top_p) == pytest.approx(shares, abs=0.03)


def test_log_probabilities_are_after_temperature_and_before_top_p() -> None:
    assert _one(LOGITS, temperature=0.5, top_p=0.4).logprob == pytest.approx(math.log(25 / 38))


def test_temperature_0_takes_the_likeliest_and_says_the_models_own_log_probability() -> None:
    token = _one([2.0, 3.0, 1.0], temperature=0.0, top_logprobs=2)
    total = sum(math.exp(value) for value in (2, 3, 1))
    assert token.id == 1
    assert token.logprob == pytest.approx(math.log(math.exp(3) / total))
    assert [other for other, _ in token.top] == [1, 0]
    assert token.top[1][1] == pytest.approx(math.log(math.exp(2) / total))


def test_a_small_temperature_gives_no_nan() -> None:
    assert _one([1e4, -1e4, 0.0], temperature=1e-5).logprob == 0.0


def test_a_token_without_probability_never_comes() -> None:
    rows = torch.tensor([[float("-inf"), 0.0, float("-inf")]] * 200)
    tokens = sample(rows, [_params()] * 200, [make_generator(0, 0)] * 200)
    assert {token.id for token in tokens} == {1}


def test_a_seed_repeats_and_choices_and_seeds_differ() -> None:
    def draws(seed: int, choice: int) -> list[int]:
        generator = make_generator(seed, choice)
        rows = torch.tensor([LOGITS] * 50)
        return [token.id for token in sample(rows, [_params()] * 50, [generator] * 50)]

    assert draws(7, 0) == draws(7, 0)
    assert len({tuple(draws(seed, choice)) for seed in (7, 8, -1) for choice in (0, 1, 2)}) == 9


def test_rows_of_a_batch_have_their_own_parameters() -> None:
    rows = torch.tensor([LOGITS, LOGITS])
    greedy, drawn = sample(
        rows, [_params(temperature=0.0), _params(temperature=2.0)], [make_generator(0, 0)] * 2
    )
    roots = [math.sqrt(share) for share in (0.5, 0.3, 0.2)]
    assert (greedy.id, greedy.logprob) == (0, pytest.approx(math.log(0.5)))
    assert drawn.logprob == pytest.approx(math.log(roots[drawn.id] / sum(roots)))
