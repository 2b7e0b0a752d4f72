"""What the endpoint says of itself: /metrics for Prometheus, /health for whoever waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import openai
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from lightning_sdk.policy.admin import Admin
from lightning_sdk.policy.publisher import HttpPublisher
from support.policy_fakes import scripted_policies, served

USER: Any = {"role": "user", "content": "hi"}


def _samples(url: str, token: str | None = None) -> dict[frozenset[str], float]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with urlopen(Request(url.removesuffix("/v1") + "/metrics", headers=headers), timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    return {
        frozenset({sample.name, *sample.labels.values()}): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_answers_tokens_and_refusals_are_counted() -> None:
    policies, engine, _ = scripted_policies("abc", "de", "x")
    with served(policies) as url:
        client = OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=20)
        create = client.chat.completions.create
        create(model="scripted", messages=[USER])
        list(create(model="scripted", messages=[USER], stream=True))
        engine.failure = RuntimeError("no")
        with pytest.raises(openai.InternalServerError):
            create(model="scripted", messages=[USER])
        with pytest.raises(openai.NotFoundError):
            create(model="other", messages=[USER])
        engine.full = True
        with pytest.raises(openai.RateLimitError):
            create(model="scripted", messages=[USER])
        found = _samples(url)
    assert found[frozenset({"lightning_answers_total", "scripted", "ok"})] == 2
    assert found[frozenset({"lightning_answers_total", "scripted", "failed"})] == 2
    assert found[frozenset({"lightning_tokens_total", "scripted", "sampled"})] == len("abc.de.x")
    assert found[frozenset({"lightning_refusals_total", "404", "model_not_found"})] == 1
    assert found[frozenset({"lightning_refusals_total", "429", "queue_full"})] == 1
    assert found[frozenset({"lightning_answer_seconds_count", "scripted"})] == 2
    assert found[frozenset({"lightning_first_token_seconds_count", "scripted"})] == 3
    assert found[frozenset({"lightning_choices", "scripted", "running"})] == 0
    assert found[frozenset({"lightning_token_records_lost_total", "scripted"})] == 0


def test_versions_and_publishes_are_told(tmp_path: Path) -> None:
    policies, engine, _ = scripted_policies()
    weights = tmp_path / "w"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"w")
    admin = Admin(token="open", weights_dir=tmp_path, drain_timeout_s=1)
    with served(policies, admin=admin) as url:
        publisher = HttpPublisher(url, "open", tmp_path)
        publisher.publish("scripted", weights, version=6)
        engine.refusal = "no"
        with pytest.raises(Exception, match="no"):
            publisher.publish("scripted", weights, version=7)
        found = _samples(url)
    assert found[frozenset({"lightning_policy_version", "scripted"})] == 6
    assert found[frozenset({"lightning_publishes_total", "scripted", "published"})] == 1
    assert found[frozenset({"lightning_publishes_total", "scripted", "refused"})] == 1


def test_metrics_need_the_token_and_health_does_not() -> None:
    with served(scripted_policies()[0], token="sesame") as url:
        with pytest.raises(HTTPError) as refused:
            _samples(url)
        assert refused.value.code == 401
        assert _samples(url, "sesame")
        with urlopen(url.removesuffix("/v1") + "/health", timeout=20) as answer:
            assert answer.status == 200


def test_an_engine_that_cannot_answer_any_more_is_no_health() -> None:
    policies, engine, _ = scripted_policies()
    engine.problem = "restart it"
    with served(policies) as url, pytest.raises(HTTPError) as refused:
        urlopen(url.removesuffix("/v1") + "/health", timeout=20)
    assert refused.value.code == 503
    assert b"restart it" in refused.value.read()
