"""One optimiser step of one policy: forward passes, loss, gradients over all of them, clipping, step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_backends.torch_rl.aggregation import call_weights, token_weights
from lightning_backends.torch_rl.corrections import correct
from lightning_backends.torch_rl.forward import Scores, predictors, run_trunk, score
from lightning_backends.torch_rl.layout import Pass, plan
from lightning_backends.torch_rl.losses import LOSSES, TokenTerms, clip_of, divergence
from lightning_backends.torch_rl.metrics import Tally, measure_sampling
from lightning_backends.torch_rl.model import LanguageModel
from lightning_backends.torch_rl.policy import TrainedPolicy
from lightning_backends.torch_rl.samples import Floats, Sample

VALUE_COEFFICIENT = 0.5


class Updater:
    """Steps of one policy, with what holds for all of them."""

    def __init__(self, policy: TrainedPolicy, *, temperature: float, max_tokens: int | None) -> None:
        self._policy = policy
        self._options = policy.options
        self._temperature = temperature
        self._max_tokens = max_tokens

    def prepare(self, samples: Sequence[Sample], *, old: bool) -> None:
        """Fill in what is compared with, before the first step.

        Args:
            samples: of all updates to come.
            old: whether the policy's own log probabilities too. Where one step is all there is, they are those of
                that step, and need no pass of their own.
        """
        if old:
            for sample, logprobs in self._logprobs(self._policy.model, samples):
                sample.old_K = logprobs
        reference = self._policy.reference
        if reference is not None:
            with reference.active():
                for sample, logprobs in self._logprobs(reference.model, samples):
                    sample.reference_K = logprobs

    def step(self, samples: Sequence[Sample], tally: Tally, *, first: bool) -> bool:
        """One optimiser step on whole rollouts.

        Args:
            samples: the rows of the update.
            tally: takes the numbers.
            first: whether these samples have been in no step yet.

        Returns:
            Whether it was made; not where a gradient is no finite number.
        """
        policy = self._policy
        rate = policy.set_learning_rate()
        loss = self.accumulate(samples, tally, first=first)
        parameters = list(policy.trained().values())
        limit = self._options.max_grad_norm or float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        tally.last("learning_rate", rate)
        tally.mean("loss", loss)
        finite = bool(np.isfinite(norm))
        if finite:
            tally.mean("grad_norm", norm)
            policy.optimiser.step()
            policy.steps += 1
        tally.add("steps", float(finite))
        tally.add("steps_skipped", float(not finite))
        policy.optimiser.zero_grad(set_to_none=True)
        return finite

    def accumulate(self, samples: Sequence[Sample], tally: Tally, *, first: bool) -> float:
        """Add the gradient of the update's loss, which is returned, to what is trained.

        The normalisers are those of the update.
        """
        total = 0.0
        weights = token_weights(samples, self._options, self._max_tokens)
        for each in self._plan(samples):
            members = [samples[at] for at in each.rows]
            weight_K = np.concatenate([weights[at] for at in each.rows])
            hidden = run_trunk(self._policy.model, each.tree)
            scores = self._score(self._policy.model, hidden, each, members)
            loss = self._policy_loss(members, scores, weight_K, tally, first)
            if self._policy.value_head is not None:
                loss = loss + self._value_loss(samples, each, hidden, tally, first)
            total += float(loss.detach())
            loss.backward()  # type: ignore[no-untyped-call]
            if first:
                tally.add("tokens_computed", each.tree.tokens)
                tally.add(
                    "tokens_saved_by_prefixes",
                    sum(len(member.input_T) for member in members) - each.tree.tokens,
                )
        return total

    def _policy_loss(
        self, members: Sequence[Sample], scores: Scores, weight_K: Floats, tally: Tally, first: bool
    ) -> Tensor:
        options = self._options
        logprob_K = scores.logprob_K
        if members[0].old_K is None:
            _spread(members, logprob_K)
        call_K, calls = _number_calls(members)
        old_K = _like(logprob_K, np.concatenate([_known(member.old_K) for member in members]))
        behaviour_K = _like(logprob_K, np.concatenate([member.behaviour_K for member in members]))
        call_index_K = torch.from_numpy(call_K).to(logprob_K.device)
        terms = TokenTerms(
            logprob_K=logprob_K,
            old_K=old_K,
            advantage_K=_like(logprob_K, np.concatenate([member.advantage_K for member in members])),
            correction_K=correct(old_K, behaviour_K, call_index_K, calls, options),
            call_K=call_index_K,
            calls=calls,
        )
        found = LOSSES[options.loss](terms, clip_of(options))
        loss_K = found.loss_K
        if options.kl_coefficient > 0:
            reference_K = _like(logprob_K, np.concatenate([_known(member.reference_K) for member in members]))
            kl_K = divergence(logprob_K, reference_K, options.kl_estimator or "k3")
            loss_K = loss_K + options.kl_coefficient * kl_K
            tally.mean("reference_kl", _numbers(divergence(logprob_K, reference_K, "k3")))
        if options.entropy_coefficient > 0:
            loss_K = loss_K - options.entropy_coefficient * scores.entropy_K
        moved_K = _numbers(logprob_K - old_K)
        tally.mean("clip_fraction", _numbers(found.clipped_K))
        tally.mean("policy_kl", np.expm1(np.clip(moved_K, -20, 20)) - moved_K)
        tally.most("policy_ratio.most", np.exp(np.clip(moved_K, -20, 20)))
        if first:
            tally.mean("entropy", _numbers(scores.entropy_K))
            tally.mean("importance_weight.mean", _numbers(terms.correction_K))
            tally.most("importance_weight.most", _numbers(terms.correction_K))
            tally.mean("importance_weight.zero_fraction", _numbers(terms.correction_K == 0))
            for member in members:
                measure_sampling(member, tally)
        return (loss_K * _like(logprob_K, weight_K)).sum()

    def _value_loss(
        self, samples: Sequence[Sample], each: Pass, hidden: Tensor, tally: Tally, first: bool
    ) -> Tensor:
        """Squared error of the value before each call, by rollout."""
        head = self._policy.value_head
        assert head is not None
        weights = call_weights(samples)
        starts = []
        for at in each.rows:
            _, first_of = np.unique(samples[at].call_K, return_index=True)
            starts.append(samples[at].place_K[first_of])
        places = torch.from_numpy(predictors(each.tree, starts)).to(hidden.device)
        values_C = head(hidden[places])
        targets_C = _like(values_C, np.concatenate([samples[at].target_C for at in each.rows]))
        weight_C = _like(values_C, np.concatenate([weights[at] for at in each.rows]))
        error_C = (values_C - targets_C).square()
        if first:
            tally.mean("value.error", _numbers(error_C))
            tally.mean("value.mean", _numbers(values_C))
        coefficient = self._options.value_coefficient or VALUE_COEFFICIENT
        loss: Tensor = coefficient * (error_C * weight_C).sum()
        return loss

    def _logprobs(self, model: LanguageModel, samples: Sequence[Sample]) -> list[tuple[Sample, Floats]]:
        found: list[tuple[Sample, Floats]] = []
        with torch.no_grad():
            for each in self._plan(samples):
                members = [samples[at] for at in each.rows]
                scores = self._score(model, run_trunk(model, each.tree), each, members)
                values = _numbers(scores.logprob_K)
                bounds = np.cumsum([member.tokens for member in members])[:-1]
                found.extend(zip(members, np.split(values, bounds), strict=True))
        return found

    def _score(self, model: LanguageModel, hidden: Tensor, each: Pass, members: Sequence[Sample]) -> Scores:
        return score(
            model,
            hidden,
            predictors(each.tree, [member.place_K for member in members]),
            np.concatenate([member.token_K for member in members]),
            temperature=self._temperature,
            head_tokens=self._options.head_tokens,
            train_entropy=self._options.entropy_coefficient > 0,
        )

    def _plan(self, samples: Sequence[Sample]) -> list[Pass]:
        return plan(
            [sample.input_T for sample in samples],
            budget=self._policy.budget,
            share_prefixes=self._options.share_prefixes,
            plain_length=self._policy.model.plain_length,
        )


def _spread(members: Sequence[Sample], logprob_K: Tensor) -> None:
    """The policy's own log probabilities are those of this pass: nothing has been changed since."""
    bounds = np.cumsum([member.tokens for member in members])[:-1]
    for member, values in zip(members, np.split(_numbers(logprob_K), bounds), strict=True):
        member.old_K = values


def _number_calls(members: Sequence[Sample]) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], int]:
    firsts = np.cumsum([0, *(member.calls for member in members)])
    numbered = [member.call_K + first for member, first in zip(members, firsts[:-1], strict=True)]
    return np.concatenate(numbered), int(firsts[-1])


def _known(values: Floats | None) -> Floats:
    assert values is not None
    return values


def _like(tensor: Tensor, values: Floats) -> Tensor:
    return torch.from_numpy(values).to(device=tensor.device, dtype=tensor.dtype)


def _numbers(tensor: Tensor) -> Floats:
    numbers: Floats = tensor.detach().double().cpu().numpy()
    return numbers
