"""The engine on torch with prompts that are long: they are read piece by piece, between the steps of others.

1. What comes out is what a plain forward pass gives, alone and in a crowd.
2. Between two pieces the answers that run go on, and a short prompt overtakes.
3. A caller who leaves while its prompt is read frees its place at the next piece.
4. What several prompts begin with is read once, even while all of them are being read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.tiny_model import save_tiny_model

torch = pytest.importorskip("torch", reason="needs the [torch] extra")

from lightning_sdk.policy.engine import Load, SamplingParams  # noqa: E402
from lightning_sdk.policy.transformers_engine import TransformersEngine, load_engine, loop  # noqa: E402

pytestmark = pytest.mark.model

PIECE = 16
SHORT, LONG = list(range(5, 15)), [7 + place * 31 % 200 for place in range(10 * PIECE + 3)]
# Of every kind: shorter than a piece, exactly one, beginning like another one, beginning like all of it.
PROMPTS = [SHORT, LONG, LONG[:PIECE], LONG[: 5 * PIECE + 1] + SHORT, LONG[:-1], SHORT + LONG, LONG + SHORT]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TransformersEngine]:
    monkeypatch.setattr(loop, "_PIECE_TOKENS", PIECE)
    engine = load_engine(directory, device="cpu", threads=1, max_batch=4, max_queue=16)
    yield engine
    engine.close()


@pytest.fixture
def passes(engine: TransformersEngine) -> list[tuple[int, int]]:
    """(first slot, tokens of all rows) of each forward pass."""
    seen: list[tuple[int, int]] = []
    forward = engine._model.forward

    def watched(first: int, rows: Any) -> Any:
        seen.append((first, sum(map(len, rows))))
        return forward(first, rows)

    engine._model.forward = watched  # type: ignore[method-assign]
    return seen


def _params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "top_p": 1.0, "seed": 3, "max_tokens": 6, **fields})


async def _sampled(
    engine: TransformersEngine, prompt: list[int], **fields: Any
) -> tuple[list[int], list[float]]:
    tokens = [
        token async for delta in engine.generate(prompt, 1, _params(**fields)) for token in delta.tokens
    ]
    return [token.id for token in tokens], [token.logprob for token in tokens]


async def test_every_row_gets_what_a_plain_pass_gives(engine: TransformersEngine, directory: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory)
    alone = [await _sampled(engine, prompt, seed=place) for place, prompt in enumerate(PROMPTS)]
    engine._model.slots.clear()
    crowd = await asyncio.gather(
        *(_sampled(engine, prompt, seed=place % len(PROMPTS)) for place, prompt in enumerate(PROMPTS * 2))
    )
    for place, (ids, logprobs) in enumerate(crowd):
        prompt = PROMPTS[place % len(PROMPTS)]
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
        expected = torch.log_softmax(logits, -1)[torch.arange(len(ids)), ids].tolist()
        assert logprobs == pytest.approx(expected, abs=1e-4)
        assert ids == alone[place % len(PROMPTS)][0]


async def test_a_long_prompt_is_read_in_pieces_with_the_same_ends_wherever_it_begins(
    engine: TransformersEngine, passes: list[tuple[int, int]]
) -> None:
    await _sampled(engine, LONG[:20], max_tokens=1)
    await _sampled(engine, LONG, max_tokens=1)
    assert [tokens for _, tokens in passes] == [PIECE, 4, PIECE - 4, *[PIECE] * 8, 3]


async def test_answers_go_on_between_the_pieces_and_a_short_prompt_overtakes(
    engine: TransformersEngine, passes: list[tuple[int, int]]
) -> None:
    order: list[str] = []

    async def ask(name: str, prompt: list[int], max_tokens: int) -> None:
        params = _params(max_tokens=max_tokens)
        order.extend([name async for _ in engine.generate(prompt, 1, params)])

    running = engine.generate(SHORT[:3], 1, _params(max_tokens=400, temperature=2.0))
    await anext(running)
    # Both wait for the same turn: the long one came first.
    with engine._changed:
        both = [asyncio.ensure_future(ask("long", LONG, 1)), asyncio.ensure_future(ask("short", SHORT, 1))]
        while len(engine._waiting) < 2:
            await asyncio.sleep(0)
    await asyncio.gather(*both)
    await running.aclose()
    assert order == ["short", "long"]
    pieces = [place for place, (first, tokens) in enumerate(passes) if first > 0 and tokens in (PIECE, 3)]
    between = [passes[a + 1 : b] for a, b in pairwise(pieces[1:])]
    assert all((0, 1) in steps for steps in between[1:])


async def test_a_caller_that_leaves_while_its_prompt_is_read_frees_its_place(
    engine: TransformersEngine, passes: list[tuple[int, int]]
) -> None:
    leaving = asyncio.ensure_future(anext(engine.generate(LONG, 2, _params())))
    forward = engine._model.forward

    def leave_in_the_second_piece(first: int, rows: Any) -> Any:
        result = forward(first, rows)
        if len(passes) == 2:
            engine._give_up(list(engine._rows))
        return result

    engine._model.forward = leave_in_the_second_piece  # type: ignore[method-assign]
    while len(passes) < 2 or engine.load != Load(running=0, waiting=0):
        await asyncio.sleep(0.001)
    leaving.cancel()
    assert len(passes) == 2
    ids, _ = await _sampled(engine, LONG, seed=1)
    engine._model.slots.clear()
    assert (await _sampled(engine, LONG, seed=1))[0] == ids


async def test_what_prompts_share_is_read_once_even_while_all_are_read(
    engine: TransformersEngine, passes: list[tuple[int, int]]
) -> None:
    async for _ in engine.generate(LONG, 4, _params(max_tokens=1)):
        pass
    assert sum(tokens for _, tokens in passes) == len(LONG) + 3
    passes.clear()
    engine._model.slots.clear()
    await asyncio.gather(*(_sampled(engine, LONG + [token] * 5, max_tokens=1) for token in (1, 2, 3)))
    assert sum(tokens for _, tokens in passes) == len(LONG) + 3 * 5
