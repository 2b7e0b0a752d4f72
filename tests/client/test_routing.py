"""Which agents are routed: what `init` and the variables may say.

What a routed call then is on the wire is told by tests/integrations/test_openai_routing.py.
"""

from __future__ import annotations

from typing import Any

import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults
from lightning_sdk.client.config import load_config
from lightning_sdk.client.recorder import ProcessRecorder
from lightning_sdk.client.routing import agents_of_variable, checked_agents
from lightning_sdk.client.runtime import active
from lightning_sdk.errors import ConfigError
from lightning_sdk.plugins import Route
from lightning_sdk.testing import capture

ENDPOINT = "http://127.0.0.1:8000/v1"


def routes_of(*agents: str) -> list[str | None]:
    """The policy that each agent's calls go to; "-" for those that go nowhere else."""
    found: list[str | None] = []
    for agent in agents:

        def ask() -> None:
            route = ProcessRecorder().route()
            found.append("-" if route is None else route.policy)

        ls.trace_agent(name=agent)(ask)()
    return found


@pytest.mark.parametrize(
    ("agents", "settled"),
    [
        ("", ()),
        ({}, ()),
        ("writer", (("writer", None),)),
        (" writer | rewr* ", (("writer", None), ("rewr*", None))),
        ({"a|b": "large", "*": None}, (("a", "large"), ("b", "large"), ("*", None))),
    ],
)
def test_agents_are_patterns_or_a_mapping(agents: Any, settled: Any) -> None:
    assert checked_agents(agents) == settled


@pytest.mark.parametrize(
    ("agents", "why"),
    [
        ("writer||critic", "an empty pattern"),
        ("|", "an empty pattern"),
        (["writer"], "is a list"),
        (3, "is a int"),
        ({1: "large"}, "has the key 1"),
        ({"writer": 1}, "to the policy 1"),
        ({"writer": "two words"}, "to the policy 'two words'"),
        ({"writer": "50%"}, "without %"),
        ({"writer": ""}, "to the policy ''"),
        ({"writer": "größe"}, "visible ASCII"),
    ],
)
def test_other_agents_are_refused_in_one_sentence(agents: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        ls.init(policy_endpoint=ENDPOINT, agents=agents)
    assert "\n" not in str(caught.value)
    assert ". " not in str(caught.value)


def test_the_variable_is_patterns_or_a_json_object() -> None:
    assert agents_of_variable("writer|critic") == (("writer", None), ("critic", None))
    assert agents_of_variable(' {"writer": "large", "*": null}') == (("writer", "large"), ("*", None))
    for text, why in (
        ('{"writer": }', "is none"),
        ('{"writer": [1]}', r"to the policy \[1\]"),
        ("{" * 9000, "none"),
    ):
        with pytest.raises(ConfigError, match=why):
            agents_of_variable(text)


def test_the_first_pattern_that_matches_counts_and_case_matters() -> None:
    ls.init(policy_endpoint=ENDPOINT, agents={"wri?er": "one", "w*": "two", "[ab]x": None})
    assert routes_of("writer", "worker", "ax", "cx", "Writer") == ["one", "two", None, "-", "-"]


def test_a_rollout_without_a_scope_is_the_agent_without_a_name_and_outside_there_is_none() -> None:
    ls.init(policy_endpoint=ENDPOINT, policy_token="secret", agents="*", split="train")
    assert ProcessRecorder().route() is None
    with ls.rollout() as run:
        route = ProcessRecorder().route()
    assert route == Route(
        endpoint=ENDPOINT, token="secret", policy=None, split="train", rollout_id=run.rollout_id, agent=""
    )
    assert route.url("chat/completions") == f"{ENDPOINT}/chat/completions"
    assert route.headers("ca_1") == {
        "x-lightning-call-id": "ca_1",
        "x-lightning-split": "train",
        "x-lightning-rollout": run.rollout_id,
        "x-lightning-agent": "",
        "authorization": "Bearer secret",
    }
    assert "secret" not in repr(route)


def test_names_of_any_characters_can_be_headers() -> None:
    route = Route(
        endpoint=ENDPOINT, token=None, policy=None, split=None, rollout_id="a b\r\nx: y", agent="é%"
    )
    assert route.headers(None) == {
        "x-lightning-rollout": "a%20b%0D%0Ax:%20y",
        "x-lightning-agent": "%C3%A9%25",
    }


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"agents": "writer"}, "nowhere to send their calls: give policy_endpoint"),
        ({"agents": "writer", "policy_endpoint": ""}, "nowhere to send"),
        ({"agents": "writer", "policy_endpoint": ENDPOINT, "integrations": ()}, "without an integration"),
        ({"policy_token": "t"}, "without a policy_endpoint"),
        ({"policy_token": "", "policy_endpoint": ENDPOINT}, "LIGHTNING_POLICY_TOKEN"),
        ({"policy_token": "hid\nden", "policy_endpoint": ENDPOINT}, "LIGHTNING_POLICY_TOKEN"),
        ({"policy_token": b"hidden", "policy_endpoint": ENDPOINT}, "policy_token is a bytes"),
    ],
)
def test_options_that_do_nothing_or_cannot_work_are_refused(options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        ls.init(**options)
    assert "hid" not in str(caught.value)


def test_what_the_environment_routes_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_AGENTS", "*")
    with pytest.raises(ConfigError, match="nowhere to send"):
        load_config()
    assert load_config(agents="").agents == ()
    assert load_config(policy_endpoint=ENDPOINT).agents == (("*", None),)


def test_variables_that_cannot_be_used_are_ignored_with_a_log_line_and_nothing_is_routed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LIGHTNING_POLICY_ENDPOINT", ENDPOINT)
    monkeypatch.setenv("LIGHTNING_POLICY_TOKEN", "hid\tden")
    monkeypatch.setenv("LIGHTNING_AGENTS", "{broken")
    before = faults.counters().get("settings_ignored", 0)
    assert routes_of("writer") == ["-"]
    assert faults.counters()["settings_ignored"] == before + 2
    assert "no call is routed, every agent keeps its own model" in caplog.text
    assert "hid" not in caplog.text
    assert active().config.policy_endpoint == ENDPOINT


def test_a_capture_routes_what_an_explicit_init_asks_for_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LIGHTNING_POLICY_ENDPOINT", ENDPOINT)
    monkeypatch.setenv("LIGHTNING_AGENTS", "*")
    with capture():
        assert routes_of("writer") == ["-"]
    assert routes_of("writer") == [None]
    with capture():
        assert routes_of("writer") == ["-"]
    ls.init(agents={"writer": "mine"})
    with capture():
        assert routes_of("writer", "critic") == ["mine", "-"]


def test_the_token_is_shown_nowhere() -> None:
    ls.init(policy_endpoint=ENDPOINT, policy_token="hidden", agents="*")
    assert "hidden" not in repr(active().config) + repr(active().routing)
