"""What `GET /metrics` tells, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lightning_sdk.policy.policies import Policy

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """The counters of one endpoint."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_State(list(policies)))
        self.answers = Counter(
            "lightning_answers",
            "Answers that began, by how they ended: ok, aborted (the client left) or failed.",
            ["policy", "outcome"],
            registry=self._registry,
        )
        self.refusals = Counter(
            "lightning_refusals",
            "Requests that were refused, before they were sampled or while.",
            ["status", "code"],
            registry=self._registry,
        )
        self.tokens = Counter(
            "lightning_tokens",
            "Tokens of prompts, and sampled ones.",
            ["policy", "kind"],
            registry=self._registry,
        )
        self.first_token_seconds = Histogram(
            "lightning_first_token_seconds",
            "From the request's being understood to its first token: waiting and reading the prompt.",
            ["policy"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.answer_seconds = Histogram(
            "lightning_answer_seconds",
            "From the request's being understood to its last token.",
            ["policy"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.publishes = Counter(
            "lightning_publishes",
            "New weights that came, by what became of them: published or refused.",
            ["policy", "outcome"],
            registry=self._registry,
        )

    def text(self) -> bytes:
        """All of them, as they are now."""
        return generate_latest(self._registry)


class _State(Collector):
    """What the policies say of themselves when they are asked."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        self._policies = policies

    def collect(self) -> Iterator[Metric]:
        choices = GaugeMetricFamily(
            "lightning_choices", "Choices that run, and that wait.", labels=["policy", "state"]
        )
        version = GaugeMetricFamily(
            "lightning_policy_version", "Version of the weights that sample now.", labels=["policy"]
        )
        lost = CounterMetricFamily(
            "lightning_token_records_lost", "Answers whose record could not be written.", labels=["policy"]
        )
        for policy in self._policies:
            load = policy.engine.load
            choices.add_metric([policy.name, "running"], load.running)
            choices.add_metric([policy.name, "waiting"], load.waiting)
            version.add_metric([policy.name], policy.engine.policy_version)
            lost.add_metric([policy.name], policy.recorder.failures)
        yield from (choices, version, lost)
