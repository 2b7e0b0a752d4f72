"""The engine on torch, with a tiny model.

1. What it says of a token is what a plain forward pass over the same ids says.
2. Neighbours, joining and leaving, shared prefixes and reused places change no row's result.
3. A caller who leaves frees its place; a queue that is full refuses.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.tiny_model import CONTEXT_LENGTH, PLAIN_TEMPLATE, TOOL_TEMPLATE, save_tiny_model
from support.waiting import wait_until

torch = pytest.importorskip("torch", reason="needs the [torch] extra")

from lightning_sdk.errors import ConfigError  # noqa: E402
from lightning_sdk.policy.chat_format import ChatFormat  # noqa: E402
from lightning_sdk.policy.engine import Delta, Load, SamplingParams  # noqa: E402
from lightning_sdk.policy.errors import ApiError  # noqa: E402
from lightning_sdk.policy.transformers_engine import TransformersEngine, load_engine  # noqa: E402

pytestmark = pytest.mark.model

PROMPTS = [
    "a",
    "Tom has 23 apples.",
    "Tom has 23 apples and buys 18 more.",
    "zzz" * 40,
    "Tom",
    "0123456789" * 9,
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(directory: Path) -> Iterator[TransformersEngine]:
    engine = load_engine(directory, device="cpu", threads=1, max_batch=4, max_queue=8)
    yield engine
    engine.close()


def _params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "top_p": 1.0, "seed": 0, "max_tokens": 24, **fields})


def _ids(engine: TransformersEngine, text: str) -> list[int]:
    return engine.tokenizer.encode(engine.tokenizer.render([{"role": "user", "content": text}], None))


class _Answer:
    def __init__(self, deltas: list[Delta], choice: int) -> None:
        mine = [delta for delta in deltas if delta.choice == choice]
        self.ids = [token.id for delta in mine for token in delta.tokens]
        self.logprobs = [token.logprob for delta in mine for token in delta.tokens]
        self.text = "".join(delta.text for delta in mine)
        self.finish_reason = mine[-1].finish_reason


async def _answers(
    engine: TransformersEngine, prompt: list[int], params: SamplingParams, n: int = 1
) -> list[_Answer]:
    deltas = [delta async for delta in engine.generate(prompt, n, params)]
    return [_Answer(deltas, choice) for choice in range(n)]


async def _answer(engine: TransformersEngine, prompt: list[int], **fields: Any) -> _Answer:
    return (await _answers(engine, prompt, _params(**fields)))[0]


def _plain_logprobs(
    directory: Path, prompt: list[int], sampled: list[int], temperature: float
) -> list[float]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1].float()
    logprobs = torch.log_softmax(logits / temperature, -1)
    return logprobs[torch.arange(len(sampled)), sampled].tolist()


async def test_log_probabilities_are_those_of_a_plain_forward_pass(
    engine: TransformersEngine, directory: Path
) -> None:
    for temperature in (0.0, 0.7, 1.0):
        prompt = _ids(engine, PROMPTS[1])
        answer = await _answer(engine, prompt, temperature=temperature)
        expected = _plain_logprobs(directory, prompt, answer.ids, temperature or 1.0)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


async def test_greedy_takes_the_likeliest_token_of_the_plain_model(
    engine: TransformersEngine, directory: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory)
    prompt = _ids(engine, PROMPTS[1])
    expected: list[int] = []
    with torch.inference_mode():
        for _ in range(24):
            expected.append(int(model(torch.tensor([prompt + expected])).logits[0, -1].argmax()))
            if expected[-1] == model.config.eos_token_id:
                break
    assert (await _answer(engine, prompt)).ids == expected


async def test_a_row_in_a_batch_gets_what_it_gets_alone(directory: Path) -> None:
    async def run(together: bool) -> list[_Answer]:
        engine = load_engine(directory, device="cpu", threads=1, max_batch=4, max_queue=8)
        try:
            work = [
                _answer(
                    engine,
                    _ids(engine, text),
                    temperature=place % 2 * 0.9,
                    seed=place,
                    max_tokens=8 + 9 * place,
                )
                for place, text in enumerate(PROMPTS)
            ]
            return list(await asyncio.gather(*work)) if together else [await one for one in work]
        finally:
            engine.close()

    alone, batched = await run(together=False), await run(together=True)
    for one, other in zip(alone, batched, strict=True):
        assert other.ids == one.ids
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
        assert (other.text, other.finish_reason) == (one.text, one.finish_reason)


async def test_a_delta_says_which_version_of_the_weights_sampled_it(directory: Path) -> None:
    engine = load_engine(directory, device="cpu", threads=1, max_batch=2, max_queue=2)
    seen: list[int] = []
    try:
        engine.policy_version = 4
        async for delta in engine.generate(_ids(engine, PROMPTS[0]), 1, _params(temperature=1.0)):
            if not seen:
                engine.policy_version = 7
            seen.append(delta.policy_version)
    finally:
        engine.close()
    assert seen[0] == 4
    assert seen == sorted(seen)
    assert set(seen) <= {4, 7}


async def test_prefixes_and_places_used_again_change_nothing(
    engine: TransformersEngine, directory: Path
) -> None:
    """Many more sequences than places, with all sorts of common beginnings, each checked by a plain pass."""
    for turn in range(3):
        prompts = [_ids(engine, text + "!" * turn) for text in PROMPTS]
        answers = await asyncio.gather(
            *(_answer(engine, prompt, temperature=1.0, seed=turn) for prompt in prompts)
        )
        for prompt, answer in zip(prompts, answers, strict=True):
            expected = _plain_logprobs(directory, prompt, answer.ids, 1.0)
            assert answer.logprobs == pytest.approx(expected, abs=1e-4)
            # The conversation goes on where this answer ended.
            longer = [*prompt, *answer.ids, *_ids(engine, "go on")]
            after = await _answer(engine, longer, max_tokens=4)
            expected = _plain_logprobs(directory, longer, after.ids, 1.0)
            assert after.logprobs == pytest.approx(expected, abs=1e-4)


async def test_a_prompt_that_was_seen_runs_only_its_last_token(engine: TransformersEngine) -> None:
    seen: list[int] = []
    forward = engine._model.forward

    def counted(first: int, rows: Any) -> Any:
        seen.append(sum(map(len, rows)))
        return forward(first, rows)

    engine._model.forward = counted  # type: ignore[method-assign]
    prompt = _ids(engine, PROMPTS[2])
    await _answers(engine, prompt, _params(max_tokens=1), n=3)
    await _answer(engine, prompt, max_tokens=1)
    await _answer(engine, [*prompt, *prompt[:5]], max_tokens=1)
    assert seen == [len(prompt), 2, 1, 5]  # the two other choices in one pass


async def test_short_prompts_are_read_together_and_what_they_share_only_once(
    engine: TransformersEngine, directory: Path
) -> None:
    seen: list[list[int]] = []
    forward = engine._model.forward

    def counted(first: int, rows: Any) -> Any:
        seen.append([len(row) for row in rows])
        return forward(first, rows)

    running = engine.generate(_ids(engine, "busy"), 1, _params(max_tokens=400, temperature=1.0))
    await anext(running)
    system = _ids(engine, "a" * 60)
    prompts = [[*system, *_ids(engine, text)] for text in ("?", "bb", "cccc")]
    engine._model.forward = counted  # type: ignore[method-assign]
    # All three are there before the engine takes its next turn: one that has no place yet waits.
    with engine._changed:
        rows = [asyncio.ensure_future(_answer(engine, prompt, max_tokens=3)) for prompt in prompts]
        for _ in range(20):
            await asyncio.sleep(0)
    answers = await asyncio.gather(*rows)
    await running.aclose()
    read = [lengths for lengths in seen if max(lengths) > 1]
    assert [len(lengths) for lengths in read] == [1, 2]
    assert sum(map(sum, read)) <= len(system) + sum(len(prompt) - len(system) for prompt in prompts)
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = _plain_logprobs(directory, prompt, answer.ids, 1.0)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


async def test_choices_differ_and_a_seed_repeats_them_all(engine: TransformersEngine) -> None:
    prompt = _ids(engine, PROMPTS[0])
    once, again = [await _answers(engine, prompt, _params(temperature=1.0, seed=5), n=6) for _ in range(2)]
    assert [answer.ids for answer in once] == [answer.ids for answer in again]
    assert len({tuple(answer.ids) for answer in once}) == 6


async def test_sampling_ends_with_the_end_token_which_is_told_but_not_shown(
    engine: TransformersEngine,
) -> None:
    end = engine.tokenizer.encode("<|im_end|>")[0]
    for seed in range(200):
        answer = await _answer(engine, _ids(engine, "a"), temperature=2.0, seed=seed, max_tokens=64)
        if answer.finish_reason == "stop":
            break
    assert answer.ids.index(end) == len(answer.ids) - 1
    assert "<|im_end|>" not in answer.text
    assert answer.text == engine.tokenizer.decode(answer.ids)


async def test_a_stop_string_across_tokens_ends_sampling_at_its_last_token(
    engine: TransformersEngine,
) -> None:
    for seed in range(200):
        asked: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_tokens": 40}
        whole = await _answer(engine, _ids(engine, "a"), **asked)
        readable = re.search("[ -~]{2}", whole.text)  # two characters are two tokens here
        if readable is not None:
            break
    assert readable is not None
    stop, at = readable.group(), readable.start()
    cut = await _answer(engine, _ids(engine, "a"), **asked, stop=("not there", stop))
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[:at]
    assert cut.ids == whole.ids[: len(cut.ids)]
    assert engine.tokenizer.decode(cut.ids).endswith(stop)
    assert stop not in engine.tokenizer.decode(cut.ids[:-1])


async def test_a_caller_that_leaves_frees_its_place(engine: TransformersEngine) -> None:
    prompt = _ids(engine, "a")
    generation = engine.generate(prompt, 4, _params(max_tokens=400))
    await anext(generation)
    assert engine.load.running + engine.load.waiting == 4
    await generation.aclose()
    wait_until(lambda: engine.load == Load(running=0, waiting=0))


async def test_a_full_queue_refuses_and_what_waits_is_served(engine: TransformersEngine) -> None:
    prompt = _ids(engine, "a")
    running, waiting = (engine.generate(prompt, 4, _params(max_tokens=400)) for _ in range(2))
    begun = [asyncio.ensure_future(anext(generation)) for generation in (running, waiting)]
    await begun[0]
    with pytest.raises(ApiError) as caught:
        await anext(engine.generate(prompt, 5, _params()))
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    with pytest.raises(ApiError) as caught:
        await anext(engine.generate(prompt, 9, _params()))
    assert (caught.value.status, caught.value.param) == (400, "n")
    await running.aclose()
    await begun[1]
    await waiting.aclose()


async def test_a_step_that_fails_refuses_its_answers_and_the_next_one_works(
    engine: TransformersEngine,
) -> None:
    prompt = _ids(engine, "a")
    before = await _answer(engine, prompt)
    forward = engine._model.forward

    def fail(first: int, rows: Any) -> Any:
        engine._model.forward = forward  # type: ignore[method-assign]
        raise RuntimeError("out of memory")

    engine._model.forward = fail  # type: ignore[method-assign]
    with pytest.raises(ApiError) as caught:
        await _answer(engine, prompt)
    assert caught.value.status == 500
    assert (await _answer(engine, prompt)).ids == before.ids


async def test_a_closed_engine_refuses(directory: Path) -> None:
    engine = load_engine(directory, device="cpu", threads=1)
    engine.close()
    with pytest.raises(ApiError) as caught:
        await anext(engine.generate([1], 1, _params()))
    assert caught.value.status == 503


def test_a_real_chat_template_is_probed_for_tools(directory: Path, tmp_path: Path) -> None:
    for template, knows in ((PLAIN_TEMPLATE, False), (TOOL_TEMPLATE, True)):
        engine = load_engine(
            save_tiny_model(tmp_path / str(knows), template=template), device="cpu", threads=1
        )
        try:
            chat_format = ChatFormat(engine.tokenizer)
            assert chat_format.template_knows_tools is knows
            call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
            messages: list[dict[str, Any]] = [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "42"},
            ]
            tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
            prompt = chat_format.prompt_text(messages, [tool])
            assert '"arguments": {"x": 1}' in prompt
            assert ("<|im_start|>tool\n42" in prompt) is knows
        finally:
            engine.close()


def test_attention_within_a_window_limits_the_context(directory: Path, tmp_path: Path) -> None:
    engine = load_engine(directory, device="cpu", threads=1)
    engine.close()
    windowed = load_engine(save_tiny_model(tmp_path / "window", sliding_window=64), device="cpu", threads=1)
    windowed.close()
    assert (engine.context_length, windowed.context_length) == (CONTEXT_LENGTH, 64)


def test_a_model_whose_layers_do_not_attend_so_is_refused(tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    save_tiny_model(tmp_path)
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (tmp_path / name).unlink(missing_ok=True)
    MambaForCausalLM(
        MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, state_size=4)
    ).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="MambaForCausalLM"):
        load_engine(tmp_path, device="cpu", threads=1)


def test_a_directory_without_weights_template_or_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    no_weights = save_tiny_model(tmp_path / "weights")
    (no_weights / "model.safetensors").unlink()
    no_template = save_tiny_model(tmp_path / "template", template=None)
    no_tokenizer = save_tiny_model(tmp_path / "tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (no_tokenizer / name).unlink(missing_ok=True)
    for broken, what in (
        (no_weights, "its model does not load"),
        (no_template, "no chat template"),
        (no_tokenizer, "its tokenizer does not load"),
    ):
        with pytest.raises(ConfigError, match=what) as caught:
            load_engine(broken, device="cpu")
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_that_is_not_there_is_said(directory: Path) -> None:
    with pytest.raises(ConfigError, match="--device cuda"):
        load_engine(directory, device="cuda")
