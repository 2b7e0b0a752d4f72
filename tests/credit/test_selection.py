"""Which transitions are trained, and the reason of each that is not.

1. Agents, models and policies by shell patterns, alternatives separated by "|".
2. Token ids of the engine are required, unless text will do.
3. Calls sampled otherwise than from the policy itself are off_distribution.
4. Too long, too old: the last by whole groups of one policy.
"""

from __future__ import annotations

from typing import Any

import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp.select import Selection
from lightning_sdk.mdp.table import build_table
from support.credit_groups import MadeCall, call, group, rollout


def reasons(selection: Selection, *calls: MadeCall) -> list[str | None]:
    return list(build_table([group(rollout("a", *calls))], selection=selection).reason_C)


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        (None, ["writer", "rewriter_2", "checker", None]),
        ("writer", ["writer"]),
        ("writer|rewriter*", ["writer", "rewriter_2"]),
        ("*writer*", ["writer", "rewriter_2"]),
        ("writer | checker", ["writer", "checker"]),
        ("Writer", []),
        ("?*", ["writer", "rewriter_2", "checker"]),
    ],
)
def test_agents_are_selected_by_pattern(pattern: str | None, taken: list[str | None]) -> None:
    names = ["writer", "rewriter_2", "checker", None]
    found = reasons(Selection(agents=pattern), *(call(1.0, name) for name in names))
    assert [name for name, reason in zip(names, found, strict=True) if reason is None] == taken
    assert set(found) <= {None, "unselected_agent"}


def test_models_and_policies_are_selected_by_pattern() -> None:
    calls = [call(1.0), call(1.0, model="gpt-5"), call(1.0, policy=None)]
    assert reasons(Selection(models="tiny*"), *calls) == [None, "other_model", None]
    assert reasons(Selection(policies="tiny"), *calls) == [None, None, "other_model"]


def test_text_will_do_only_where_it_is_said() -> None:
    calls = [
        call(1.0, fidelity="text", drop_reason="no_token_ids"),
        call(1.0, drop_reason="id_check_failed"),
        call(1.0, drop_reason="empty_response"),
        call(1.0, fidelity="text"),
    ]
    assert reasons(Selection(), *calls) == [
        "no_token_ids",
        "id_check_failed",
        "empty_response",
        "no_token_ids",
    ]
    assert reasons(Selection(require_engine=False), *calls) == [None, None, "empty_response", None]


@pytest.mark.parametrize(
    ("requested", "effective", "on"),
    [
        (None, None, True),
        ({"temperature": 0.7}, {"temperature": 0.7, "top_p": 1.0}, True),
        ({"top_p": 0.9}, None, False),
        ({"top_p": 0.9}, {"top_p": 1.0}, True),  # what the engine did is what counts
        (None, {"temperature": 0.0}, False),
        (None, {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "logit_bias": {}}, True),
        (None, {"top_k": 50}, False),
        (None, {"min_p": 0.1}, False),
        ({"presence_penalty": 0.5}, {"temperature": 1.0}, False),
        ({"logit_bias": {"5": -100}}, None, False),
        ({"ignore_eos": True}, None, False),
        (None, {"constrained": "json_schema"}, False),
        ({"max_tokens": 5, "n": 2, "seed": 1, "stop": ["x"]}, None, True),
        # What is no number: a lenient server may have taken it for anything.
        *(({"temperature": value}, None, False) for value in ("1", "", {}, [1.0], float("nan"), -1, 0)),
        *(({"top_p": value}, None, False) for value in ("1", {}, [1.0], float("nan"))),
        ({"logit_bias": ["x"], "top_k": {"k": 1}}, None, False),
    ],
)
def test_sampling_must_be_the_policys_own(requested: Any, effective: Any, on: bool) -> None:
    sampled = call(1.0, sampling={"requested": requested, "effective": effective})
    assert reasons(Selection(), sampled) == [None if on else "off_distribution"]


@pytest.mark.parametrize(
    ("wanted", "on"), [(None, True), ({"type": "text"}, True), ({"type": "json_object"}, False)]
)
def test_a_grammar_may_have_decided(wanted: Any, on: bool) -> None:
    sampled = call(1.0, observation={"messages": [], "response_format": wanted})
    assert reasons(Selection(), sampled) == [None if on else "off_distribution"]


def test_prompt_and_response_together_are_bounded() -> None:
    # Prompts have 3 tokens: 3 + 2 = 5, 3 + 3 = 6.
    assert reasons(Selection(max_tokens=5), call(1.0, tokens=2), call(1.0, tokens=3)) == [None, "over_length"]


def test_one_old_call_drops_its_whole_group_of_that_policy_and_no_other() -> None:
    fresh, old, other = call(1.0, policy_version=7), call(1.0, policy_version=4), call(1.0, policy="b")
    table = build_table(
        [
            group(rollout("a", fresh, old, other), rollout("b", fresh)),
            group(rollout("c", fresh, call(1.0, policy_version=None, drop_reason="error")), group_id="h"),
        ],
        selection=Selection(min_policy_version={"tiny": 5}),
    )
    too_old = "policy_too_old"
    assert table.reason_C == (too_old, too_old, None, too_old, None, "error")


def test_an_unknown_version_is_too_old() -> None:
    assert reasons(Selection(min_policy_version=1), call(1.0, policy_version=None)) == ["policy_too_old"]
    assert reasons(Selection(), call(1.0, policy_version=None)) == [None]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": ""}, "agents='' is no name pattern"),
        ({"models": "a||b"}, "models='a||b' is no name pattern"),
        ({"max_tokens": 0}, "max_tokens is 0; give at least 1"),
        ({"max_tokens": "9"}, "max_tokens is '9'; give at least 1"),
        ({"min_policy_version": "3"}, "min_policy_version has '3'; give a whole number"),
        ({"min_policy_version": {"tiny": 1.5}}, "min_policy_version has 1.5; give a whole number"),
    ],
)
def test_what_would_select_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Selection(**settings)
    assert message in str(refusal.value)
