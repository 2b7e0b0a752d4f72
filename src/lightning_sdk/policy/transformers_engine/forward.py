"""Forward passes of a causal language model over slots."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from lightning_sdk.errors import ConfigError
from lightning_sdk.policy.transformers_engine.slots import KeyValueSlots
from lightning_sdk.policy.transformers_engine.weights import Weights

_CHECK_TOKENS = 12
_SCORE_TOKENS = 256


class BatchedModel:
    """A model whose rows need not be equally long: each attends to its own slot's columns only.

    One thread uses it, in inference mode.
    """

    def __init__(self, model: Any, *, slots: int) -> None:
        self.slots = KeyValueSlots(slots)
        self.weights = Weights(model)
        self.vocabulary: int = model.config.get_text_config().vocab_size
        self._model = model
        self._device: torch.device = model.device
        self._mask_dtype: torch.dtype = model.dtype
        known = inspect.signature(model.forward).parameters
        # transformers 5 renamed it on the way.
        self._cache_name = "cache" if "cache" in known else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in known else {}

    def forward(self, first: int, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append tokens to slots `first` and following, at least one to each, and run them in one pass.

        Returns:
            (B, V) logits after the last token of each row.
        """
        slots = self.slots
        longest = max(map(len, rows))
        # Shorter rows are filled up at the front, so that each ends at the last place.
        ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=self._device)
        ends = [len(slots.tokens[first + place]) + len(row) for place, row in enumerate(rows)]
        steps = torch.arange(-longest, 0, device=self._device)
        positions = torch.tensor(ends, device=self._device)[:, None] + steps
        if any(len(row) < longest for row in rows):
            filled = torch.tensor([longest - len(row) for row in rows], device=self._device)
            positions = positions.masked_fill(steps + longest < filled[:, None], -1)
        slots.open(first, positions)
        # What fills up looks at column 0, of whatever it is: its result is not used.
        positions = positions.clamp(min=0)
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask(positions, slots.span),
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: slots},
            **self._last_only,
        )
        for place, tokens in enumerate(rows):
            slots.tokens[first + place].extend(tokens)
            slots.touch(first + place)
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def score(self, ids: Sequence[int]) -> list[float]:
        """Log probabilities of `ids[1:]`, each after those before it, by one plain pass; no slot changes."""
        logits = self._model(input_ids=torch.tensor([ids], device=self._device), use_cache=False).logits[
            0, :-1
        ]
        targets = torch.tensor(ids[1:], device=self._device)
        scored: list[float] = []
        # In pieces: the vocabulary in float32 for a whole context would be gigabytes.
        for part, target in zip(
            torch.split(logits, _SCORE_TOKENS), torch.split(targets, _SCORE_TOKENS), strict=True
        ):
            logprobs = torch.log_softmax(part.float(), -1)
            scored.extend(logprobs.gather(-1, target[:, None])[:, 0].tolist())
        return scored

    def check(self) -> None:
        """Run a few tokens over slots, in uneven rows, and compare with the plain model.

        Raises:
            ConfigError: the results differ, or it cannot run that way: its attention is of another kind.
        """
        ids = [1 + place % (self.vocabulary - 1) for place in range(_CHECK_TOKENS)]
        try:
            with torch.inference_mode():
                plain = self._model(input_ids=torch.tensor([ids], device=self._device)).logits[0, -1].float()
                self.forward(0, [ids[:7]])
                self.forward(1, [ids[:-1]])
                ours = self.forward(0, [ids[7:8], ids[-1:]])[1].float()
        except Exception as error:
            raise self._unfit(f"{type(error).__name__}: {error}") from error
        finally:
            self.slots.clear()
        tolerance = 0.01 if self._mask_dtype == torch.float32 else 0.2
        if not float((ours - plain).abs().max()) <= tolerance * float(plain.std()):
            raise self._unfit("its logits differ from those of the plain model")

    def _mask(self, positions: torch.Tensor, span: int) -> torch.Tensor:
        """(B, 1, T, span): 0 where a token may look (its own past), the least number elsewhere."""
        columns = torch.arange(span, device=self._device)
        hidden = columns > positions[:, None, :, None]
        least = torch.finfo(self._mask_dtype).min
        return torch.zeros(hidden.shape, dtype=self._mask_dtype, device=self._device).masked_fill(
            hidden, least
        )

    def _unfit(self, why: str) -> ConfigError:
        return ConfigError(
            f"{type(self._model).__name__} cannot be served in batches ({' '.join(why.split())[:200]}): "
            "use a model with plain causal attention"
        )
