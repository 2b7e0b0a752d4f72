"""The thread that samples: answers join the batch between two steps and leave it when they are done."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from lightning_sdk.policy.engine import (
    Delta,
    FinishReason,
    Load,
    LogprobsMode,
    SampledToken,
    SamplingParams,
    Tokenizer,
)
from lightning_sdk.policy.errors import ApiError, internal, invalid, queue_full, shutting_down
from lightning_sdk.policy.stop_text import StoppableText
from lightning_sdk.policy.transformers_engine.forward import BatchedModel
from lightning_sdk.policy.transformers_engine.sampling import make_generator, sample

_log = logging.getLogger(__name__)

# A long prompt runs in pieces that end at multiples of this, whoever its neighbours are; between two pieces
# the others sample, and whoever gave up leaves.
_PIECE_TOKENS = 256


@dataclass(slots=True, eq=False)
class _Row:
    """One choice of one answer. While it runs it is in slot number "its place among the running rows"."""

    choice: int
    prompt: Sequence[int]
    params: SamplingParams
    text: StoppableText
    generator: torch.Generator
    deliver: Callable[[Delta | ApiError], None]
    sampled: list[int] = field(default_factory=list)
    # Set by the caller's thread, read between two steps.
    given_up: bool = False


class TransformersEngine:
    """`engine.Engine` over a `BatchedModel`.

    A row's result does not depend on its neighbours, up to the rounding of float arithmetic: each has a mask,
    a position, and a random generator of its own.
    """

    shapes: frozenset[str] = frozenset()
    constrains = False

    def __init__(
        self,
        model: BatchedModel,
        tokenizer: Tokenizer,
        *,
        context_length: int,
        end_ids: frozenset[int],
        threads: int | None,
        max_batch: int,
        max_queue: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.policy_version = 0
        self._model = model
        self._end_ids = end_ids
        self._threads = threads
        self._max_batch = max_batch
        self._max_queue = max_queue
        # Those that sample come first; behind them those whose prompt has not run to its end yet.
        self._rows: list[_Row] = []
        self._sampling = 0
        # The latter once more, in the order of their turns.
        self._reading: deque[_Row] = deque()
        self._waiting: deque[_Row] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="lightning-policy-engine", daemon=True)
        self._thread.start()

    def logprobs_mode(self, params: SamplingParams) -> LogprobsMode:
        """See `engine.Engine.logprobs_mode`."""
        return "raw" if params.greedy else "processed"

    @property
    def load(self) -> Load:
        """Choices that run and that wait."""
        with self._changed:
            return Load(running=len(self._rows), waiting=len(self._waiting))

    async def generate(
        self, prompt: Sequence[int], n: int, params: SamplingParams
    ) -> AsyncGenerator[Delta, None]:
        """See `engine.Engine.generate`."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Delta | ApiError] = asyncio.Queue()

        def deliver(item: Delta | ApiError) -> None:
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, item)
            except RuntimeError:  # the loop is closed, so nobody waits any more
                for row in rows:
                    row.given_up = True

        rows = [self._make_row(choice, prompt, params, deliver) for choice in range(n)]
        self._enqueue(rows)
        unfinished = n
        try:
            while unfinished:
                item = await arrived.get()
                if isinstance(item, ApiError):
                    raise item
                unfinished -= item.finish_reason is not None
                yield item
        finally:
            if unfinished:
                self._give_up(rows)

    def close(self) -> None:
        """Stop: what still runs is refused, and the thread ends."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _make_row(
        self,
        choice: int,
        prompt: Sequence[int],
        params: SamplingParams,
        deliver: Callable[[Delta | ApiError], None],
    ) -> _Row:
        return _Row(
            choice=choice,
            prompt=prompt,
            params=params,
            text=StoppableText(self.tokenizer, params.stop),
            generator=make_generator(params.seed, choice),
            deliver=deliver,
        )

    def _enqueue(self, rows: Sequence[_Row]) -> None:
        with self._changed:
            if self._closing:
                raise shutting_down()
            if len(rows) > self._max_queue:
                raise invalid(
                    f"n is {len(rows)}, but no more than {self._max_queue} may wait here", param="n"
                )
            if len(self._waiting) + len(rows) > self._max_queue:
                raise queue_full(self._max_queue)
            self._waiting.extend(rows)
            self._changed.notify()

    def _give_up(self, rows: Sequence[_Row]) -> None:
        with self._changed:
            for row in rows:
                row.given_up = True
            self._changed.notify()

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)  # OpenMP keeps the number by thread
        with torch.inference_mode():
            while self._wait_for_work():
                self._guarded_turn()
        self._refuse_all(shutting_down)

    def _guarded_turn(self) -> None:
        try:
            self._turn()
        except Exception as error:
            _log.exception("the engine failed; its running answers are refused")
            self._refuse_all(partial(internal, error))
            self._model.slots.clear()

    def _wait_for_work(self) -> bool:
        """Whether there is some; False once the engine closes."""
        with self._changed:
            while not (self._rows or self._waiting or self._closing):
                self._changed.wait()
            return not self._closing

    def _turn(self) -> None:
        """One step of the batch, after those who left, those who joined, and a bounded part of prompts."""
        self._leave([place for place, row in enumerate(self._rows) if row.given_up])
        while (row := self._next_waiting()) is not None:
            self._model.slots.claim(len(self._rows) - 1, row.prompt)
            self._reading.append(row)
        read = 0
        while self._reading and read < _PIECE_TOKENS:
            read += self._read_on(self._reading.popleft())
        if self._sampling:
            logits = self._model.forward(0, [row.sampled[-1:] for row in self._rows[: self._sampling]])
            self._advance(0, logits)

    def _next_waiting(self) -> _Row | None:
        """Move the next row from waiting to running; None where there is none or no room."""
        with self._changed:
            while self._waiting and len(self._rows) < self._max_batch:
                row = self._waiting.popleft()
                if not row.given_up:
                    self._rows.append(row)
                    return row
        return None

    def _read_on(self, row: _Row) -> int:
        """Run the next piece of a prompt that no slot holds yet; after the last one sample the first token.

        Returns:
            How many tokens ran.
        """
        place = self._rows.index(row)
        # Meanwhile another may have read what both begin with: the other choices of one request always do.
        start = self._model.slots.catch_up(place, row.prompt)
        end = min(len(row.prompt), (start // _PIECE_TOKENS + 1) * _PIECE_TOKENS)
        logits = self._model.forward(place, [row.prompt[start:end]])
        if end < len(row.prompt):
            self._reading.append(row)
        else:
            self._swap(place, self._sampling)
            self._sampling += 1
            self._advance(self._sampling - 1, logits)
        return end - start

    def _advance(self, first: int, logits: torch.Tensor) -> None:
        """Give each row that samples, from `first` on, its next token; those that are done leave."""
        rows = self._rows[first : self._sampling]
        # This thread is the only one that changes the weights, and never between a pass and its sampling.
        version = self.policy_version
        tokens = sample(logits, [row.params for row in rows], [row.generator for row in rows])
        self._leave(
            [
                first + place
                for place, (row, token) in enumerate(zip(rows, tokens, strict=True))
                if self._take(row, token, version) is not None
            ]
        )

    def _take(self, row: _Row, token: SampledToken, version: int) -> FinishReason | None:
        row.sampled.append(token.id)
        finish: FinishReason | None = None
        if token.id in self._end_ids:
            text, finish = row.text.flush(), "stop"
        else:
            text = row.text.feed(token.id)
            if row.text.stopped:
                finish = "stop"
            elif len(row.sampled) >= row.params.max_tokens:
                text, finish = text + row.text.flush(), "length"
                if row.text.stopped:
                    finish = "stop"
        row.deliver(Delta(row.choice, (token,), text, finish, version))
        return finish

    def _leave(self, places: Sequence[int]) -> None:
        """Take rows out, filling each place from the end; what they computed stays in the slots behind."""
        for place in reversed(places):
            if place < self._sampling:
                self._sampling -= 1
                self._swap(place, self._sampling)
                place = self._sampling
            else:
                self._reading.remove(self._rows[place])
            self._swap(place, len(self._rows) - 1)
            with self._changed:
                self._rows.pop()

    def _swap(self, a: int, b: int) -> None:
        """Exchange two running rows."""
        self._model.slots.swap(a, b)
        with self._changed:
            self._rows[a], self._rows[b] = self._rows[b], self._rows[a]

    def _refuse_all(self, make_error: Callable[[], ApiError]) -> None:
        with self._changed:
            rows = [*self._rows, *self._waiting]
            self._rows.clear()
            self._waiting.clear()
        self._reading.clear()
        self._sampling = 0
        for row in rows:
            row.deliver(make_error())
