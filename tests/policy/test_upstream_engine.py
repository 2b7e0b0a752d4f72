"""The engine over another server, which is a small one here; `nox -s vllm` runs it over vLLM.

1. What goes there is the prompt's token ids and every sampling value; what comes back is told token by token.
2. Whatever goes wrong there is an error of the API here, and a caller who leaves ends the work there.
3. A publish is drained and paused, clears what was cached, and is taken back where the probe differs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_sdk.errors import ConfigError, PublishError
from lightning_sdk.plugins import Probe
from lightning_sdk.policy.engine import Constraint, Delta, Load, SamplingParams
from lightning_sdk.policy.errors import ApiError
from lightning_sdk.policy.policies import Policy
from lightning_sdk.policy.recording import TokenRecorder
from lightning_sdk.policy.sampling import SamplingRequest, decide_sampling
from lightning_sdk.policy.upstream_engine.client import UpstreamClient
from lightning_sdk.policy.upstream_engine.connecting import _look
from lightning_sdk.policy.upstream_engine.engine import UpstreamEngine
from support.fake_upstream import FakeUpstream, running
from support.policy_fakes import END, ByteTokenizer, MemoryWriter

PROMPT = list(b"cba")


@pytest.fixture
def upstream() -> FakeUpstream:
    return FakeUpstream()


@pytest.fixture
def url(upstream: FakeUpstream) -> Iterator[str]:
    with running(upstream.app) as root:
        yield root + "/v1"


@pytest.fixture
async def engine(url: str, upstream: FakeUpstream, tmp_path: Path) -> AsyncIterator[UpstreamEngine]:
    upstream.offsets = {name: offset for offset, name in enumerate(("loaded", "new"))}
    for name in upstream.offsets:
        _checkpoint(tmp_path / name)
    engine = UpstreamEngine(
        UpstreamClient(url, "key", silence_timeout_s=30),
        ByteTokenizer(),
        model="upstream-model",
        weights=tmp_path / "loaded",
        context_length=512,
        vocabulary=258,
        raw_logprobs=False,
        max_choices=4,
    )
    yield engine
    upstream.go_on.set()
    await engine.stop()


def _checkpoint(directory: Path, shape: tuple[int, ...] = (2,)) -> Path:
    size = 4
    for length in shape:
        size *= length
    header = json.dumps({"w": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, size]}}).encode()
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    return directory


def _params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "top_p": 1.0, "seed": 5, "max_tokens": 100, **fields})


async def _sample(engine: UpstreamEngine, n: int = 1, **fields: Any) -> list[Delta]:
    return [delta async for delta in engine.generate(PROMPT, n, _params(**fields))]


def _text(deltas: list[Delta], choice: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.choice == choice)


async def test_ids_and_log_probabilities_come_token_by_token(engine: UpstreamEngine) -> None:
    deltas = await _sample(engine, 2, top_logprobs=1, temperature=0.5)
    for choice in (0, 1):
        mine = [delta for delta in deltas if delta.choice == choice]
        assert [token.id for delta in mine for token in delta.tokens] == [*b"abc", END]
        assert [token.logprob for delta in mine for token in delta.tokens] == pytest.approx(
            [-1.94, -1.96, -1.98, -END / 50]
        )
        assert mine[0].tokens[0].top == ((97, pytest.approx(-1.94)),)
        assert _text(deltas, choice) == "abc"
        assert [delta.finish_reason for delta in mine] == [None, None, None, "stop"]
    assert engine.load == Load(running=0, waiting=0)


async def test_every_sampling_value_is_said_so_that_no_default_of_the_model_counts(
    engine: UpstreamEngine, upstream: FakeUpstream
) -> None:
    await _sample(engine, temperature=0.5, stop=("zz",), shaping={"top_k": 3})
    (asked,) = upstream.requests
    assert asked["prompt"] == PROMPT
    assert upstream.headers[0]["authorization"] == "Bearer key"
    said = {
        name: asked[name]
        for name in ("model", "n", "temperature", "top_p", "seed", "max_tokens", "stop", "top_k")
    }
    assert said == {
        "model": "upstream-model",
        "n": 1,
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": 5,
        "max_tokens": 100,
        "stop": ["zz"],
        "top_k": 3,
    }
    assert (asked["repetition_penalty"], asked["min_p"], asked["frequency_penalty"]) == (1, 0, 0)


async def test_a_seed_that_nobody_asked_for_is_left_to_the_server(
    engine: UpstreamEngine, upstream: FakeUpstream
) -> None:
    policy = Policy("p", engine, TokenRecorder(MemoryWriter(), "p"))
    for asked, split, seed in ((None, None, None), (7, None, 7), (7, "train", None)):
        params = decide_sampling(SamplingRequest(seed=asked), policy, split, 3)
        [delta async for delta in engine.generate(PROMPT, 1, params)]
        assert (params.seed, upstream.requests[-1].get("seed")) == (seed, seed)


async def test_a_constraint_goes_there_as_a_response_format(
    engine: UpstreamEngine, upstream: FakeUpstream
) -> None:
    await _sample(engine, constraint=Constraint("json_schema", {"type": "object"}))
    wanted = upstream.requests[0]["response_format"]
    assert (wanted["type"], wanted["json_schema"]["schema"]) == ("json_schema", {"type": "object"})


async def test_a_stop_string_ends_the_text_before_it(engine: UpstreamEngine) -> None:
    deltas = await _sample(engine, stop=("bc",))
    assert _text(deltas) == "a"
    assert deltas[-1].finish_reason == "stop"
    assert [token.id for delta in deltas for token in delta.tokens] == [*b"abc"]


async def test_greedy_choices_are_asked_for_once_and_told_each(
    engine: UpstreamEngine, upstream: FakeUpstream
) -> None:
    deltas = await _sample(engine, 3, temperature=0.0)
    assert upstream.requests[0]["n"] == 1
    assert [_text(deltas, choice) for choice in range(3)] == ["abc"] * 3


@pytest.mark.parametrize(
    ("refuses", "status", "retry_after"),
    [
        ((400, {"message": "too long"}), 400, None),
        ((429, {"message": "busy"}), 429, "7"),
        ((503, {"message": "loading"}), 503, "7"),
        ((401, {"message": "no key"}), 502, None),
        ((500, {"message": "died"}), 502, None),
    ],
)
async def test_a_refusal_there_is_one_here(
    engine: UpstreamEngine,
    upstream: FakeUpstream,
    refuses: tuple[int, dict[str, Any]],
    status: int,
    retry_after: str | None,
) -> None:
    upstream.refuses = refuses
    with pytest.raises(ApiError, match=refuses[1]["message"]) as caught:
        await _sample(engine)
    assert (caught.value.status, caught.value.headers.get("retry-after")) == (status, retry_after)


@pytest.mark.parametrize(
    ("how", "what"), [("break", "does not answer|broke off"), ("error", "the engine died")]
)
async def test_a_stream_that_breaks_off_or_fails_is_an_error_after_what_came(
    engine: UpstreamEngine, upstream: FakeUpstream, how: str, what: str
) -> None:
    upstream.after = (2, how)
    came: list[Delta] = []

    async def take() -> None:
        async for delta in engine.generate(PROMPT, 1, _params()):
            came.append(delta)  # noqa: PERF401 - what came before it raises counts

    with pytest.raises(ApiError, match=what) as caught:
        await take()
    assert (_text(came), caught.value.status) == ("ab", 502)
    assert engine.load.running == 0


async def test_a_server_that_tells_no_token_ids_is_refused(
    engine: UpstreamEngine, upstream: FakeUpstream
) -> None:
    upstream.tells_ids = False
    with pytest.raises(ApiError, match="token ids"):
        await _sample(engine)


async def test_a_server_that_is_gone_is_said(tmp_path: Path) -> None:
    client = UpstreamClient("http://127.0.0.1:1/v1", None, silence_timeout_s=1)
    with pytest.raises(ApiError, match="does not answer") as caught:
        await client.models()
    assert caught.value.status == 502
    await client.close()
    with pytest.raises(ConfigError, match="cannot be used"):
        await _look("http://127.0.0.1:1/v1", None, 1)


async def test_a_caller_that_leaves_ends_the_work_there(
    engine: UpstreamEngine, upstream: FakeUpstream
) -> None:
    upstream.after = (1, "wait")
    generation = engine.generate(PROMPT, 2, _params())
    await anext(generation)
    assert (engine.load.running, upstream.open_streams) == (2, 1)
    await generation.aclose()
    assert engine.load.running == 0
    while upstream.open_streams:
        await asyncio.sleep(0.01)


async def test_more_than_may_run_and_wait_is_a_429(engine: UpstreamEngine, upstream: FakeUpstream) -> None:
    upstream.after = (1, "wait")
    generation = engine.generate(PROMPT, 3, _params())
    await anext(generation)
    with pytest.raises(ApiError) as caught:
        await _sample(engine, 2)
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    await generation.aclose()


async def test_what_the_server_is_and_what_its_numbers_mean_is_found_out(
    upstream: FakeUpstream, url: str
) -> None:
    found = await _look(url, None, 30)
    assert found == {"model": "upstream-model", "context_length": 512, "raw_logprobs": False}
    upstream.raw = True
    assert (await _look(url, None, 30))["raw_logprobs"] is True


async def test_log_probabilities_before_temperature_are_marked_so(engine: UpstreamEngine) -> None:
    assert [engine.logprobs_mode(_params(temperature=t)) for t in (0, 0.5, 1)] == [
        "raw",
        "processed",
        "processed",
    ]
    engine.raw_logprobs = True
    assert [engine.logprobs_mode(_params(temperature=t)) for t in (0, 0.5, 1)] == ["raw", "raw", "processed"]


def _probe(offset: float) -> Probe:
    return Probe(token_ids=[PROMPT], logprobs=[[-token / 100 + offset for token in PROMPT[1:]]])


async def _publish(engine: UpstreamEngine, weights: Path, version: int, **fields: Any) -> None:
    await engine.publish(weights, version, **{"probe": _probe(1), "drain_timeout_s": 30, **fields})


RELOAD = ["/pause?mode=keep", "/collective_rpc", "/reset_prefix_cache?reset_running_requests=true", "/resume"]


async def test_a_publish_pauses_reloads_clears_and_goes_on(
    engine: UpstreamEngine, upstream: FakeUpstream, tmp_path: Path
) -> None:
    before = await _sample(engine)
    await _publish(engine, tmp_path / "new", 4)
    after = await _sample(engine)
    assert upstream.controls == RELOAD
    assert {delta.policy_version for delta in before} == {0}
    assert {delta.policy_version for delta in after} == {4}
    assert after[0].tokens[0].logprob == pytest.approx(before[0].tokens[0].logprob + 1)


async def test_what_runs_is_waited_for_and_what_comes_meanwhile_waits(
    engine: UpstreamEngine, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.after = (1, "wait")
    running = engine.generate(PROMPT, 1, _params())
    old = [await anext(running)]
    publishing = asyncio.ensure_future(_publish(engine, tmp_path / "new", 1))
    while engine._open.is_set():
        await asyncio.sleep(0.01)
    later = asyncio.ensure_future(_sample(engine))
    while not engine.load.waiting:
        await asyncio.sleep(0.01)
    assert upstream.controls == []
    upstream.go_on.set()
    old += [delta async for delta in running]
    await publishing
    assert {delta.policy_version for delta in old} == {0}
    assert {delta.policy_version for delta in await later} == {1}


async def test_what_outlasts_the_drain_goes_on_and_says_both_versions(
    engine: UpstreamEngine, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.after = (1, "wait")
    running = engine.generate(PROMPT, 1, _params())
    deltas = [await anext(running)]
    await _publish(engine, tmp_path / "new", 1, drain_timeout_s=0)
    upstream.go_on.set()
    deltas += [delta async for delta in running]
    assert [delta.policy_version for delta in deltas] == [0, 1, 1, 1]


async def test_weights_that_compute_something_else_are_taken_back(
    engine: UpstreamEngine, upstream: FakeUpstream, tmp_path: Path
) -> None:
    with pytest.raises(PublishError, match="do not compute here what the probe says"):
        await _publish(engine, tmp_path / "new", 1, probe=_probe(5))
    assert upstream.controls == RELOAD * 2
    assert (upstream.offset, engine.policy_version) == (0, 0)
    assert {delta.policy_version for delta in await _sample(engine)} == {0}


async def test_an_answer_that_ran_while_wrong_weights_were_tried_is_given_up(
    engine: UpstreamEngine, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.after = (1, "wait")
    running = engine.generate(PROMPT, 1, _params())
    await anext(running)
    with pytest.raises(PublishError):
        await _publish(engine, tmp_path / "new", 1, probe=_probe(5), drain_timeout_s=0)
    upstream.go_on.set()
    with pytest.raises(ApiError, match="sampled by them") as caught:
        await anext(running)
    assert caught.value.status == 503


async def test_weights_that_cannot_be_taken_back_end_the_service_rather_than_lie(
    engine: UpstreamEngine, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.loads_wrongly = 0.5
    with pytest.raises(PublishError):
        await _publish(engine, tmp_path / "new", 1)
    with pytest.raises(ApiError, match="restart") as caught:
        await _sample(engine)
    assert caught.value.status == 503


async def test_weights_that_do_not_fit_never_get_there(
    engine: UpstreamEngine, upstream: FakeUpstream, tmp_path: Path
) -> None:
    for other, what in (
        (_checkpoint(tmp_path / "shape", (3,)), "shape"),
        (tmp_path / "nothing", "no directory"),
    ):
        with pytest.raises(PublishError, match=what):
            await _publish(engine, other, 1)
    cut = tmp_path / "new" / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises(PublishError, match="cut short"):
        await _publish(engine, tmp_path / "new", 1)
    with pytest.raises(PublishError, match="older"):
        await _publish(engine, tmp_path / "loaded", -1)
    assert upstream.controls == []


async def test_a_server_without_its_development_routes_cannot_be_published_to(
    engine: UpstreamEngine, upstream: FakeUpstream, tmp_path: Path
) -> None:
    upstream.dev_mode = False
    with pytest.raises(PublishError, match="VLLM_SERVER_DEV_MODE=1"):
        await _publish(engine, tmp_path / "new", 1)
    assert _text(await _sample(engine)) == "abc"  # nothing has changed


async def test_an_engine_that_has_stopped_refuses(engine: UpstreamEngine) -> None:
    await engine.stop()
    with pytest.raises(ApiError) as caught:
        await _sample(engine)
    assert caught.value.status == 503
