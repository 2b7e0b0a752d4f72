"""New weights for an engine that serves.

1. After a publish every token is sampled by the new weights, also where the old ones had read the prompt.
2. Running answers finish with the old weights; those that outlast the drain go on with the new ones, and say so.
3. Weights that do not fit, or compute something else than expected, change nothing.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_sdk.errors import PublishError
from lightning_sdk.plugins import Probe
from support.tiny_model import CONTEXT_LENGTH, save_tiny_model

torch = pytest.importorskip("torch", reason="needs the [torch] extra")

from safetensors.torch import load_file, save_file  # noqa: E402

from lightning_sdk.policy.engine import Delta, SamplingParams  # noqa: E402
from lightning_sdk.policy.transformers_engine import TransformersEngine, load_engine  # noqa: E402

pytestmark = pytest.mark.model

PROMPT = list(range(40, 80))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")
    for tied in (False, True):
        for seed in (0, 1):
            save_tiny_model(root / f"{'tied' if tied else 'untied'}{seed}", seed=seed, tied=tied)
    return root


@pytest.fixture
def engine(models: Path) -> Iterator[TransformersEngine]:
    engine = load_engine(models / "untied0", device="cpu", threads=1, max_batch=2, max_queue=8)
    yield engine
    engine.close()


def _params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "top_p": 1.0, "seed": 1, "max_tokens": 12, **fields})


async def _sample(engine: TransformersEngine, **fields: Any) -> list[Delta]:
    return [delta async for delta in engine.generate(PROMPT, 1, _params(**fields))]


def _plain(model: Path, ids: list[int]) -> list[float]:
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(model)(torch.tensor([ids])).logits[0, :-1]
    values: list[float] = (
        torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    )
    return values


def _assert_sampled_by(models_by_version: dict[int, Path], deltas: list[Delta]) -> None:
    tokens = [(token, delta.policy_version) for delta in deltas for token in delta.tokens]
    ids = [*PROMPT, *(token.id for token, _ in tokens)]
    plain = {version: _plain(model, ids)[len(PROMPT) - 1 :] for version, model in models_by_version.items()}
    for place, (token, version) in enumerate(tokens):
        assert token.logprob == pytest.approx(plain[version][place], abs=1e-4)


async def _publish(
    engine: TransformersEngine, weights: Path, version: int, probe: Probe | None = None, drain_s: float = 60
) -> None:
    await engine.publish(weights, version, probe=probe, drain_timeout_s=drain_s)


@pytest.mark.parametrize("kind", ["untied", "tied"])
async def test_after_a_publish_the_new_weights_sample_also_where_the_old_ones_had_read_the_prompt(
    models: Path, kind: str
) -> None:
    engine = load_engine(models / f"{kind}0", device="cpu", threads=1, max_batch=2)
    try:
        before = await _sample(engine)
        await _publish(engine, models / f"{kind}1", 1)
        after = await _sample(engine)
        await _publish(engine, models / f"{kind}0", 2)
        again = await _sample(engine)
    finally:
        engine.close()
    for deltas, version, seed in ((before, 0, 0), (after, 1, 1), (again, 2, 0)):
        assert {delta.policy_version for delta in deltas} == {version}
        _assert_sampled_by({version: models / f"{kind}{seed}"}, deltas)


async def test_what_runs_finishes_with_the_old_weights_and_nothing_starts_meanwhile(
    engine: TransformersEngine, models: Path
) -> None:
    running = engine.generate(PROMPT, 1, _params(max_tokens=CONTEXT_LENGTH - len(PROMPT)))
    first = await anext(running)
    publishing = asyncio.ensure_future(_publish(engine, models / "untied1", 1))
    while engine._update is None:  # its files are read in another thread
        await asyncio.sleep(0)
    later = asyncio.ensure_future(_sample(engine))
    old = [first, *[delta async for delta in running]]
    await publishing
    assert {delta.policy_version for delta in old} == {0}
    assert {delta.policy_version for delta in await later} == {1}
    _assert_sampled_by({0: models / "untied0"}, old)


async def test_what_outlasts_the_drain_goes_on_with_the_new_weights_as_if_they_had_read_it_all(
    engine: TransformersEngine, models: Path
) -> None:
    running = [
        engine.generate(PROMPT, 1, _params(max_tokens=CONTEXT_LENGTH - len(PROMPT), seed=seed))
        for seed in (1, 2)
    ]
    begun = [await anext(each) for each in running]
    await _publish(engine, models / "untied1", 7, drain_s=0)
    for first, rest in zip(begun, running, strict=True):
        deltas = [first, *[delta async for delta in rest]]
        versions = [delta.policy_version for delta in deltas]
        assert versions == sorted(versions)
        assert set(versions) <= {0, 7}
        _assert_sampled_by({0: models / "untied0", 7: models / "untied1"}, deltas)


async def test_scores_are_those_of_a_plain_pass(engine: TransformersEngine, models: Path) -> None:
    assert await engine.score(PROMPT) == pytest.approx(_plain(models / "untied0", PROMPT), abs=1e-4)


async def test_scores_that_nobody_waits_for_any_more_disturb_no_answer(
    engine: TransformersEngine, caplog: pytest.LogCaptureFixture
) -> None:
    asked = [asyncio.ensure_future(engine.score(PROMPT)) for _ in range(16)]
    await asyncio.sleep(0)  # so that they have been asked for
    for each in asked:
        each.cancel()
    assert await _sample(engine, max_tokens=2)
    await asyncio.gather(*asked, return_exceptions=True)
    assert not caplog.records


async def test_a_probe_that_fits_passes_and_one_that_does_not_brings_the_old_weights_back(
    engine: TransformersEngine, models: Path
) -> None:
    expected = {seed: _plain(models / f"untied{seed}", PROMPT) for seed in (0, 1)}
    await _publish(engine, models / "untied1", 1, Probe(token_ids=[PROMPT], logprobs=[expected[1]]))
    with pytest.raises(PublishError, match=r"of sequence 0 is .* expected"):
        await _publish(engine, models / "untied0", 2, Probe(token_ids=[PROMPT], logprobs=[expected[1]]))
    assert engine.policy_version == 1
    assert await engine.score(PROMPT) == pytest.approx(expected[1], abs=1e-4)
    _assert_sampled_by({1: models / "untied1"}, await _sample(engine))


async def test_the_present_version_may_be_published_again_and_no_older_one(
    engine: TransformersEngine, models: Path
) -> None:
    await _publish(engine, models / "untied1", 3)
    await _publish(engine, models / "untied1", 3)
    with pytest.raises(PublishError, match="version 2 is older than 3"):
        await _publish(engine, models / "untied1", 2)


@pytest.mark.parametrize(
    "probe",
    [
        Probe(token_ids=[], logprobs=[]),
        Probe(token_ids=[[1, 2]], logprobs=[]),
        Probe(token_ids=[[1]], logprobs=[[]]),
        Probe(token_ids=[[1, 2]], logprobs=[[-1.0, -1.0]]),
        Probe(token_ids=[[1, 5_000_000]], logprobs=[[-1.0]]),
        Probe(token_ids=[[1, 2]], logprobs=[[float("nan")]]),
        Probe(token_ids=[[1] * 600], logprobs=[[-1.0] * 599]),
    ],
)
async def test_a_probe_that_cannot_be_run_or_is_no_number_is_refused(
    engine: TransformersEngine, models: Path, probe: Probe
) -> None:
    with pytest.raises(PublishError, match="probe"):
        await _publish(engine, models / "untied1", 1, probe)
    assert engine.policy_version == 0


def _edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return edit


def _pickled(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def _torn(directory: Path) -> None:
    whole = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def _index_out(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory.parent / "out.safetensors")
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../out.safetensors"}}')


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (_edited(lambda tensors: tensors.update(extra=torch.zeros(2))), "have extra, which"),
        (_edited(lambda tensors: tensors.pop(NORM)), f"lack {NORM}"),
        (_edited(lambda tensors: tensors.update({NORM: torch.ones(5)})), r"shape \[5\], expected \[32\]"),
        (_edited(lambda tensors: tensors.update({NORM: torch.ones(32, dtype=torch.int8)})), "saved as I8"),
        (_edited(lambda tensors: tensors[NORM].fill_(float("nan"))), "no finite numbers"),
        (_edited(lambda tensors: tensors[NORM].fill_(float("inf"))), "no finite numbers"),
        (_pickled, "no pickle is read"),
        (_torn, "cannot be read"),
        (_index_out, "files elsewhere"),
        (shutil.rmtree, "no directory"),
    ],
)
async def test_weights_that_do_not_fit_are_refused_and_the_old_ones_serve_on(
    engine: TransformersEngine, models: Path, tmp_path: Path, spoil: Callable[[Path], None], what: str
) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(models / "untied1", spoilt)
    spoil(spoilt)
    with pytest.raises(PublishError, match=what) as caught:
        await _publish(engine, spoilt, 1)
    assert "\n" not in str(caught.value)
    assert engine.policy_version == 0
    _assert_sampled_by({0: models / "untied0"}, await _sample(engine))


async def test_weights_in_half_precision_become_the_models_own_type(
    engine: TransformersEngine, models: Path, tmp_path: Path
) -> None:
    shutil.copytree(models / "untied1", tmp_path / "half")
    tensors = {k: v.bfloat16() for k, v in load_file(models / "untied1" / "model.safetensors").items()}
    save_file(tensors, tmp_path / "half" / "model.safetensors")
    await _publish(engine, tmp_path / "half", 1)
    assert all(own.dtype == torch.float32 for own in engine._model.weights._named.values())
    expected = _plain(models / "untied1", PROMPT)
    assert await engine.score(PROMPT) == pytest.approx(expected, abs=0.5)


async def test_the_files_may_be_overwritten_once_they_are_published(
    engine: TransformersEngine, models: Path, tmp_path: Path
) -> None:
    shutil.copytree(models / "untied1", tmp_path / "mine")
    await _publish(engine, tmp_path / "mine", 1)
    file = tmp_path / "mine" / "model.safetensors"
    file.write_bytes(b"\0" * file.stat().st_size)
    _assert_sampled_by({1: models / "untied1"}, await _sample(engine))


async def test_a_tied_model_takes_its_head_under_either_name_but_no_other_head(
    models: Path, tmp_path: Path
) -> None:
    engine = load_engine(models / "tied0", device="cpu", threads=1, max_batch=2)
    try:
        both = tmp_path / "both"
        shutil.copytree(models / "tied1", both)
        tensors = load_file(both / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, both / "model.safetensors")
        await _publish(engine, both, 1)
        assert await engine.score(PROMPT) == pytest.approx(_plain(models / "tied1", PROMPT), abs=1e-4)
        with pytest.raises(PublishError, match="tied"):
            await _publish(engine, models / "untied1", 2)
        assert await engine.score(PROMPT) == pytest.approx(_plain(models / "tied1", PROMPT), abs=1e-4)
    finally:
        engine.close()


async def test_weights_in_several_files_are_read_by_their_index(
    engine: TransformersEngine, models: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(models / "untied1").save_pretrained(tmp_path, max_shard_size="40KB")
    assert not (tmp_path / "model.safetensors").exists()
    await _publish(engine, tmp_path, 1)
    assert await engine.score(PROMPT) == pytest.approx(_plain(models / "untied1", PROMPT), abs=1e-4)


async def test_an_engine_that_closes_refuses_what_waits_to_be_published(models: Path) -> None:
    engine = load_engine(models / "untied0", device="cpu", threads=1, max_batch=2)
    running = engine.generate(PROMPT, 1, _params(max_tokens=CONTEXT_LENGTH - len(PROMPT)))
    await anext(running)
    publishing = asyncio.ensure_future(_publish(engine, models / "untied1", 1))
    while engine._update is None:
        await asyncio.sleep(0)
    await asyncio.to_thread(engine.close)
    with pytest.raises(PublishError, match="shutting down"):
        await publishing
    with pytest.raises(PublishError, match="shutting down"):
        await _publish(engine, models / "untied1", 1)
    await running.aclose()
