"""Several policies at one endpoint, and how the calls of each kind of rollout are sampled.

1. The header names the policy, else the model does; a routed call without the header is the default's.
2. A training rollout's call is sampled as the policy is trained; any other call as it asks.
3. What was asked and what was done are both in the record, so that a constrained call can be told.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from lightning_sdk.errors import ConfigError
from lightning_sdk.policy.policies import Policies, Policy, TrainingSampling
from lightning_sdk.policy.recording import TokenRecorder
from lightning_sdk.records import Record
from support.policy_fakes import MemoryWriter, ScriptedEngine, served

USER: Any = {"role": "user", "content": "hi"}
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


def _policies(*engines: ScriptedEngine, temperature: float = 1.0) -> tuple[Policies, MemoryWriter]:
    writer = MemoryWriter()
    training = TrainingSampling(temperature=temperature)
    names = ("writer", "critic")
    return Policies(
        Policy(name, engine, TokenRecorder(writer, name), training)
        for name, engine in zip(names, engines, strict=False)
    ), writer


def _ask(url: str, model: str = "writer", headers: dict[str, str] | None = None, **fields: Any) -> Any:
    client = OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=20)
    return client.chat.completions.create(model=model, messages=[USER], extra_headers=headers, **fields)


def _sampling(record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads(record.tokens.sampling_requested), json.loads(record.tokens.sampling_effective)


def test_the_header_names_the_policy_else_the_model_does() -> None:
    writer, critic = ScriptedEngine("w", "w"), ScriptedEngine("c", "c")
    policies, records = _policies(writer, critic)
    with served(policies) as url:
        assert _ask(url, "writer").choices[0].message.content == "w"
        assert _ask(url, "critic").choices[0].message.content == "c"
        assert _ask(url, "critic", {"x-lightning-policy": "writer"}).model == "writer"
        assert _ask(url, "gpt-9", {"x-lightning-policy": "critic"}).model == "critic"
        with pytest.raises(openai.NotFoundError, match="serves 'writer', 'critic'"):
            _ask(url, "writer", {"x-lightning-policy": "nobody"})
    assert [record.tokens.policy for record in records.records] == ["writer", "critic", "writer", "critic"]


def test_a_routed_call_without_the_header_is_the_defaults_whatever_model_its_code_names() -> None:
    policies, records = _policies(ScriptedEngine("w", "w"), ScriptedEngine())
    with served(policies) as url:
        for model in ("gpt-9", "critic"):
            assert _ask(url, model, {"x-lightning-agent": "solver"}).choices[0].message.content == "w"
        with pytest.raises(openai.NotFoundError):
            _ask(url, "gpt-9")
    assert [record.tokens.policy for record in records.records] == ["writer", "writer"]


def test_models_and_health_tell_each_policy_with_its_version() -> None:
    writer, critic = ScriptedEngine(), ScriptedEngine()
    critic.policy_version = 3
    with served(_policies(writer, critic)[0]) as url:
        client = OpenAI(base_url=url, api_key="unused", max_retries=0)
        cards: Any = list(client.models.list())
        health = client.get(url.removesuffix("/v1") + "/health", cast_to=object)
    assert [(card.id, card.policy_version) for card in cards] == [("writer", 0), ("critic", 3)]
    assert health["policies"] == {"writer": 0, "critic": 3}  # type: ignore[index]


def test_two_policies_of_one_name_or_none_at_all_are_refused() -> None:
    engine, recorder = ScriptedEngine(), TokenRecorder(MemoryWriter(), "a")
    with pytest.raises(ConfigError, match="two policies are called 'a'"):
        Policies([Policy("a", engine, recorder), Policy("a", engine, recorder)])
    with pytest.raises(ConfigError, match="no policy"):
        Policies([])
    with pytest.raises(ConfigError, match="training temperature is 0"):
        TrainingSampling(temperature=0)


def test_a_training_rollouts_call_is_sampled_as_the_policy_is_trained() -> None:
    engine = ScriptedEngine("abc")
    policies, records = _policies(engine, temperature=0.8)
    asked: dict[str, Any] = {"temperature": 0, "top_p": 0.5, "seed": 7, "frequency_penalty": 0.5}
    with served(policies) as url:
        _ask(
            url,
            headers={"x-lightning-split": "train"},
            **asked,
            max_tokens=2,
            stop=["zz"],
            n=1,
            extra_body={"top_k": 5},
        )
    (params,) = engine.params
    assert (params.temperature, params.top_p, params.max_tokens, params.stop) == (0.8, 1.0, 2, ("zz",))
    assert params.shaping == {}
    assert params.seed != 7  # the same seed in each rollout would make a group one rollout
    requested, effective = _sampling(records.records[0])
    assert requested == {**asked, "max_tokens": 2, "stop": ["zz"], "n": 1, "top_k": 5}
    assert effective == {
        "temperature": 0.8,
        "top_p": 1.0,
        "seed": params.seed,
        "n": 1,
        "stop": ["zz"],
        "max_tokens": 2,
        "frequency_penalty": 0,
        "top_k": -1,
    }
    assert records.records[0].tokens.logprobs_mode == "processed"


@pytest.mark.parametrize("split", ["validation", "test", ""])
def test_a_call_of_another_split_keeps_its_own_sampling(split: str) -> None:
    engine = ScriptedEngine("abc")
    policies, records = _policies(engine, temperature=0.8)
    with served(policies) as url:
        _ask(url, headers={"x-lightning-split": split}, temperature=0, seed=7)
    assert (engine.params[0].temperature, engine.params[0].seed) == (0, 7)
    assert records.records[0].tokens.logprobs_mode == "raw"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("repetition_penalty", 1.1),
        ("top_k", 20),
        ("min_p", 0.1),
        ("logit_bias", {"5": 100}),
        ("response_format", {"type": "json_object"}),
        ("response_format", SCHEMA),
    ],
)
def test_what_an_engine_cannot_do_is_refused_and_what_it_can_is_done_and_recorded(
    name: str, value: Any
) -> None:
    plain, able = ScriptedEngine(), ScriptedEngine("{}")
    able.shapes, able.constrains = frozenset({name}), True
    policies, records = _policies(plain, able)
    with served(policies) as url:
        with pytest.raises(openai.BadRequestError) as refused:
            _ask(url, "writer", extra_body={name: value})
        _ask(url, "critic", extra_body={name: value})
    assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")
    _, effective = _sampling(records.records[0])
    if name == "response_format":
        assert effective["constrained"] == value["type"]
        assert able.params[0].constraint is not None
    else:
        assert effective[name] == value
        assert able.params[0].shaping == {name: value}


def test_a_constrained_call_of_a_training_rollout_is_answered_and_marked() -> None:
    engine = ScriptedEngine("{}")
    engine.constrains = True
    policies, records = _policies(engine)
    with served(policies) as url:
        _ask(url, headers={"x-lightning-split": "train"}, response_format=SCHEMA)
    assert _sampling(records.records[0])[1]["constrained"] == "json_schema"
