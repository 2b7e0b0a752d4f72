"""The thread that samples: answers join the batch between two steps and leave it when they are done."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from lightning_sdk.errors import PublishError
from lightning_sdk.plugins import Probe
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
from lightning_sdk.policy.probing import check_probe, compare
from lightning_sdk.policy.stop_text import StoppableText
from lightning_sdk.policy.transformers_engine.forward import BatchedModel
from lightning_sdk.policy.transformers_engine.sampling import make_generator, sample
from lightning_sdk.policy.transformers_engine.slots import common_prefix
from lightning_sdk.policy.transformers_engine.weights import NewWeights

_log = logging.getLogger(__name__)

# A long prompt runs in pieces that end at multiples of this, whoever its neighbours are; between two pieces
# the others sample, and whoever gave up leaves.
_PIECE_TOKENS = 256


@dataclass(slots=True, eq=False)
class _Row:
    """One choice of one answer. While it runs it is in slot number "its place among the running rows"."""

    choice: int
    asked: list[int]
    # What its slot must hold before it samples: what was asked, and after new weights what it sampled as well.
    prompt: list[int] = field(init=False)
    params: SamplingParams
    text: StoppableText
    generator: torch.Generator
    deliver: Callable[[Delta | ApiError], None]
    sampled: list[int] = field(default_factory=list)
    # Set by the caller's thread, read between two steps.
    given_up: bool = False

    def __post_init__(self) -> None:
        self.prompt = self.asked


@dataclass(slots=True, eq=False)
class _Update:
    """New weights that wait for their turn."""

    new: NewWeights
    version: int
    probe: Probe | None
    # When, by the monotonic clock, they wait for running rows no longer.
    deadline_s: float
    done: Future[None] = field(default_factory=Future)


class TransformersEngine:
    """`engine.Engine` over a `BatchedModel`.

    A row's result does not depend on its neighbours, up to the rounding of float arithmetic: each has a mask,
    a position, and a random generator of its own.
    """

    shapes: frozenset[str] = frozenset()
    constrains = False
    seeds_itself = False
    problem = None

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
        self.vocabulary = model.vocabulary
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
        self._update: _Update | None = None
        self._to_score: deque[tuple[Sequence[int], Future[list[float]]]] = deque()
        self._one_publish = threading.Lock()
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

    async def publish(
        self, weights: Path, version: int, *, probe: Probe | None, drain_timeout_s: float
    ) -> None:
        """See `engine.Engine.publish`."""
        work = partial(self._publish, weights, version, probe, drain_timeout_s)
        # A thread that nobody can cancel.
        await asyncio.get_running_loop().run_in_executor(None, work)

    def _publish(self, weights: Path, version: int, probe: Probe | None, drain_timeout_s: float) -> None:
        with self._one_publish:
            if version < self.policy_version:
                raise PublishError(
                    f"version {version} is older than {self.policy_version}, which is served: publish a later one"
                )
            if probe is not None:
                check_probe(probe, self.vocabulary, self.context_length)
            new = self._model.weights.read(weights)
            update = _Update(new, version, probe, time.monotonic() + drain_timeout_s)
            with self._changed:
                if self._closing:
                    raise PublishError("the endpoint is shutting down: publish again to its successor")
                self._update = update
                self._changed.notify()
            update.done.result()

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """See `engine.Engine.score`."""
        scored: Future[list[float]] = Future()
        with self._changed:
            if self._closing:
                raise shutting_down()
            self._to_score.append((token_ids, scored))
            self._changed.notify()
        return await asyncio.wrap_future(scored)

    async def stop(self) -> None:
        """See `engine.Engine.stop`."""
        await asyncio.to_thread(self.close)

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
            asked=list(prompt),
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
            while not (self._rows or self._waiting or self._update or self._to_score or self._closing):
                self._changed.wait()
            return not self._closing

    def _turn(self) -> None:
        """One step of the batch, after those who left, those who joined, and a bounded part of prompts."""
        self._leave([place for place, row in enumerate(self._rows) if row.given_up])
        self._score_those_asked()
        update = self._update
        if update is not None and (not self._rows or time.monotonic() >= update.deadline_s):
            self._exchange_weights(update)
        while (row := self._next_waiting()) is not None:
            self._model.slots.claim(len(self._rows) - 1, row.prompt)
            self._reading.append(row)
        read = 0
        while self._reading and read < _PIECE_TOKENS:
            read += self._read_on()
        if self._sampling:
            logits = self._model.forward(0, [row.sampled[-1:] for row in self._rows[: self._sampling]])
            self._advance(0, logits)

    def _next_waiting(self) -> _Row | None:
        """Move the next row from waiting to running; None where there is none or no room."""
        with self._changed:
            # None starts while new weights wait for those that run.
            while self._update is None and self._waiting and len(self._rows) < self._max_batch:
                row = self._waiting.popleft()
                if not row.given_up:
                    self._rows.append(row)
                    return row
        return None

    def _exchange_weights(self, update: _Update) -> None:
        back: Callable[[], None] | None = None
        try:
            back = self._model.weights.put(update.new)
            if update.probe is not None:
                compare(update.probe, [self._model.score(ids) for ids in update.probe.token_ids])
        except Exception as error:
            if back is not None:
                back()
            if not isinstance(error, PublishError):
                _log.exception("new weights failed; those before them serve on")
                error = PublishError(
                    f"the new weights fail here ({type(error).__name__}): the endpoint's log says more"
                )
            failure: PublishError | None = error
        else:
            failure = None
            self.policy_version = update.version
            self._read_again()
        with self._changed:
            self._update = None
        if failure is not None:
            update.done.set_exception(failure)
        else:
            update.done.set_result(None)

    def _read_again(self) -> None:
        """Compute what running rows hold once more, from the present weights, before they sample on."""
        self._model.slots.forget()
        for row in self._rows[: self._sampling]:
            row.prompt = [*row.asked, *row.sampled]
            self._reading.append(row)
        self._sampling = 0

    def _score_those_asked(self) -> None:
        while self._to_score:
            ids, scored = self._to_score.popleft()
            if not scored.set_running_or_notify_cancel():
                continue  # whoever asked has left
            try:
                scored.set_result(self._model.score(ids))
            except Exception as error:
                _log.exception("scoring failed")
                scored.set_exception(internal(error))

    def _read_on(self) -> int:
        """Run the next piece of the prompt whose turn it is, and of those beside it, as many as fit into one pass.

        Who has read its prompt to the end samples its first token.

        Returns:
            How many tokens ran.
        """
        pieces = self._side_by_side(self._rows.index(self._reading[0]))
        first = min(pieces)
        batch = self._rows[first : first + len(pieces)]
        logits = self._model.forward(first, [pieces[place] for place in sorted(pieces)])
        before = self._sampling
        ended: list[int] = []
        for index, row in enumerate(batch):
            self._reading.remove(row)
            place = self._rows.index(row)
            if len(self._model.slots.tokens[place]) < len(row.prompt):
                self._reading.append(row)
                continue
            ended.append(index)
            self._swap(place, self._sampling)
            self._sampling += 1
        if ended:
            self._advance(before, logits[ended])
        return sum(map(len, pieces.values()))

    def _side_by_side(self, turn: int) -> dict[int, list[int]]:
        """The next pieces, by place, of the row at `turn` and of those around it that fit into its pass."""
        pieces = {turn: self._next_piece(turn)}
        # Behind the rows that sample all read. Whichever way, the pass needs places without a gap.
        for direction in (range(turn + 1, len(self._rows)), range(turn - 1, self._sampling - 1, -1)):
            for place in direction:
                piece = self._next_piece(place)
                area = (len(pieces) + 1) * max(map(len, [*pieces.values(), piece]))
                if area > _PIECE_TOKENS or self._waits_for(place, pieces):
                    break
                pieces[place] = piece
        return pieces

    def _next_piece(self, place: int) -> list[int]:
        """What a row reads next of its prompt: what no slot holds yet, up to the end of a piece."""
        prompt = self._rows[place].prompt
        # Meanwhile another may have read what both begin with: the other choices of one request always do.
        start = self._model.slots.catch_up(place, prompt)
        return prompt[start : (start // _PIECE_TOKENS + 1) * _PIECE_TOKENS]

    def _waits_for(self, place: int, pieces: Mapping[int, Sequence[int]]) -> bool:
        """Whether one of these pieces is about to read what this row needs too; then that is read only once."""
        held, prompt = self._model.slots.tokens, self._rows[place].prompt
        return any(
            min(
                common_prefix(prompt, self._rows[other].prompt),
                len(held[other]) + len(piece),
                len(prompt) - 1,
            )
            > len(held[place])
            for other, piece in pieces.items()
        )

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
            scores = list(self._to_score)
            self._to_score.clear()
            update, self._update = self._update, None
        self._reading.clear()
        self._sampling = 0
        for row in rows:
            row.deliver(make_error())
        for _, scored in scores:
            if scored.set_running_or_notify_cancel():
                scored.set_exception(make_error())
        if update is not None:
            update.done.set_exception(PublishError(f"{make_error().message}: nothing was published"))
