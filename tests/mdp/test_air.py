"""AIR: rules over what was observed give reward components, when episodes are read.

1. A rule finds each occurrence, at the call that caused it; what the agent did not go on from is no action.
2. Each finding adds the rule's weight: to the call's reward, under `air.<name>`, to the returns-to-go before it and
   to the return. What was emitted stays as it was.
3. A rollout that got no reward at all gets none from a rule either.
4. Rules are declared in tables; what there is not is refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from posixpath import basename
from typing import Any

import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.mdp import Episode
from lightning_sdk.mdp.air import (
    EmptyAnswer,
    Finding,
    Function,
    InvalidArguments,
    RefusedHandoff,
    RepeatedAction,
    Rule,
    SqlError,
    ToolError,
    UnparsableOutput,
    apply_air,
    find_air,
    rules_from_config,
)
from support.cli_episodes import at, episode, reward, scope, tool, transition


def asks(*requests: tuple[str, Any], content: str | None = None) -> dict[str, Any]:
    """An answer that asks for tools: their names and arguments."""
    calls = [
        {
            "id": f"new-{number}-{id(requests)}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for number, (name, given) in enumerate(requests)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    return {"message": message, "finish_reason": "tool_calls"}


def says(content: str | None, **fields: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, **fields}, "finish_reason": "stop"}


def calls(*actions: dict[str, Any] | None, **fields: Any) -> list[Any]:
    """Calls ca_0, ca_1 ... that last from 0 to 100 ms, from 200 to 300 ms and so on."""
    return [
        transition(
            call_id=f"ca_{step}",
            step=step,
            action=action,
            start_ns=at(200 * step),
            end_ns=at(200 * step + 100),
            reward=0.0,
            reward_components={},
            reward_scopes={},
            return_to_go=0.0,
            **fields,
        )
        for step, action in enumerate(actions)
    ]


def rollout(transitions: list[Any], **fields: Any) -> Episode:
    return episode(
        **{"transitions": transitions, "scopes": [scope("sc_1", "solve")], "return_": 0.0, **fields}
    )


def found(episode: Episode, rule: Rule) -> list[tuple[str | None, str]]:
    return [(each.call_id, each.seen) for each in find_air(episode, [rule])]


def failed(
    name: str, start_ms: int, arguments: Any = None, error: str = "TimeoutError: 5 s", **fields: Any
) -> Any:
    return tool(name, start_ns=at(start_ms), arguments=arguments, outcome="error", error=error, **fields)


def test_a_tool_that_raised_is_found_at_the_call_that_asked_for_it() -> None:
    made = rollout(
        calls(asks(("search", {"q": "tea"})), asks(("search", {"q": "milk"})), says("I wait")),
        tools=[
            failed("search", 510, {"q": "tea"}),
            failed("search", 520, {"q": "else"}),
            failed("lookup", 530),
            tool("search", start_ns=at(540), arguments={"q": "tea"}),
        ],
    )
    assert found(made, ToolError(weight=-1)) == [
        ("ca_0", "tool search raised TimeoutError: 5 s"),  # these arguments
        ("ca_1", "tool search raised TimeoutError: 5 s"),  # the latest that asked for the tool
        ("ca_2", "tool lookup raised TimeoutError: 5 s"),  # nobody asked: the latest in its scope
    ]
    assert len(found(made, ToolError(weight=-1, tools="look*|other"))) == 1


def test_a_tool_that_nobody_asked_for_is_of_the_innermost_agent_around_it() -> None:
    inner, outer = calls(says("a"), says("b"))

    made = rollout(
        [replace(inner, invocation_id="sc_2"), outer],
        scopes=[scope("sc_1", "solve"), scope("sc_2", "helper", parent_scope_id="sc_1")],
        tools=[
            failed("run", 400, scope_id="sc_2"),
            failed("run", 150, scope_id="sc_1"),
            failed("run", 50, scope_id="sc_1"),
        ],
    )
    assert [call_id for call_id, _ in found(made, ToolError(weight=-1))] == [
        "ca_0",  # the helper's own
        "ca_0",  # nothing in its scope yet: the latest
        None,  # nothing before it at all
    ]


@pytest.mark.parametrize(
    ("name", "given", "wrong"),
    [
        ("search", {"q": "tea", "n": 3}, None),
        ("search", '{"q": ', "tool search: the arguments are no JSON object"),
        ("search", "[1]", "tool search: the arguments are no JSON object"),
        ("search", {"n": 3}, "tool search: 'q' is missing"),
        ("find", {"q": "tea"}, "tool find: there is no such tool"),
    ],
)
def test_arguments_are_checked_against_what_was_offered(name: str, given: Any, wrong: str | None) -> None:
    parameters = {"type": "object", "properties": {"q": {}, "n": {}}, "required": ["q"]}
    offered = [{"type": "function", "function": {"name": "search", "parameters": parameters}}]
    made = rollout(calls(asks((name, given)), observation={"messages": [], "tools": offered}))
    assert found(made, InvalidArguments(weight=-1)) == ([("ca_0", wrong)] if wrong else [])


def test_each_of_several_invalid_requests_counts() -> None:
    made = rollout(calls(asks(("a", "{"), ("b", {}), ("c", "{"))))
    assert [call_id for call_id, _ in found(made, InvalidArguments(weight=-1))] == ["ca_0", "ca_0"]


@pytest.mark.parametrize(
    ("kind", "answer", "is_found"),
    [
        ("json_object", says('{"a": 1}'), False),
        ("json_object", says("[1]"), True),
        ("json_schema", says("[1]"), False),
        ("json_schema", says('{"a": 1'), True),
        ("json_schema", says(None), True),
        ("json_schema", says(None, refusal="no"), False),
        ("json_schema", asks(("search", {})), False),
        ("text", says("tea"), False),
    ],
)
def test_structured_output_has_to_parse(kind: str, answer: dict[str, Any], is_found: bool) -> None:
    made = rollout(calls(answer, observation={"messages": [], "response_format": {"type": kind}}))
    assert bool(found(made, UnparsableOutput(weight=-1))) == is_found


@pytest.mark.parametrize(
    ("fields", "is_found"),
    [
        ({"outcome": "error", "error": 'sqlite3.OperationalError: near "FORM": syntax error'}, True),
        ({"outcome": "error", "error": "TimeoutError: 5 s"}, False),
        ({"result": "Error: no such column: nmae"}, True),
        ({"result": {"error": 'relation "user" does not exist'}}, True),
        ({"result": "You have an error in your SQL syntax; check the manual"}, True),
        ({"result": "no such table" + " of contents" * 100}, False),  # so long a text is data
        ({"result": {"rows": ["no such table"]}}, False),
    ],
)
def test_a_complaint_of_the_database_is_found(fields: dict[str, Any], is_found: bool) -> None:
    made = rollout(calls(asks(("query", {}))), tools=[tool("query", **fields)])
    assert bool(found(made, SqlError(weight=-1))) == is_found


def handing_over(*replies: tuple[str, str], name: str = "transfer_to_critic") -> Episode:
    """A rollout that asks for hand-offs in its first call, and goes on with what was replied, by id."""
    first, second = calls(asks(*[(name, {})] * len(replies)), says("Then I do it"))
    for each, (id_, _) in zip(first.action["message"]["tool_calls"], replies, strict=True):
        each["id"] = id_
    told = [{"role": "tool", "tool_call_id": id_, "content": said} for id_, said in replies]
    messages = [*first.observation["messages"], first.action["message"], *told]
    return rollout([first, replace(second, observation={"messages": messages})])


@pytest.mark.parametrize(
    ("said", "is_found"),
    [
        ("Multiple handoffs detected, ignoring this one.", True),
        ("Error: transfer_to_critic is not a valid tool, try one of [search].", True),
        ("The critic is NOT AVAILABLE", True),
        ([{"type": "text", "text": "Hand-off rejected"}], True),
        ('{"assistant": "critic"}', False),
        ("Transferred to critic. Adopt its persona at once.", False),
        ("The critic writes: " + "rejected " * 200, False),
        (None, False),
    ],
)
def test_a_refused_hand_off_is_found_in_what_the_next_request_tells(said: Any, is_found: bool) -> None:
    text = said if isinstance(said, str) else "Hand-off rejected"
    expected = [("ca_0", f"hand-off transfer_to_critic: {text}")] if is_found else []
    assert found(handing_over(("id_1", said)), RefusedHandoff(weight=-1)) == expected


def test_each_refused_hand_off_counts_once_however_it_was_seen() -> None:
    made = handing_over(("id_1", "refused"), ("id_2", "refused"), ("id_3", '{"assistant": "critic"}'))
    assert len(found(made, RefusedHandoff(weight=-1))) == 2
    traced = [tool("transfer_to_critic", start_ns=at(110), arguments={}, result="refused")]
    assert len(found(replace(made, tools=traced), RefusedHandoff(weight=-1))) == 2


def test_a_hand_off_whose_tool_raised_is_refused() -> None:
    first, second = calls(asks(("handoff", {"to": "critic"})), says("Then I do it"))
    made = rollout(
        [first, second], tools=[failed("handoff", 110, {"to": "critic"}, error="KeyError: critic")]
    )
    assert found(made, RefusedHandoff(weight=-1)) == [("ca_0", "hand-off handoff: KeyError: critic")]


def test_other_tools_and_other_words_are_no_refused_hand_off_unless_it_is_said() -> None:
    made = handing_over(("id_1", "busy"), name="ask_colleague")
    assert found(made, RefusedHandoff(weight=-1)) == []
    assert found(made, RefusedHandoff(weight=-1, tools="ask_*")) == []
    assert len(found(made, RefusedHandoff(weight=-1, tools="ask_*", refusal="^busy$"))) == 1


def test_the_reply_to_another_request_with_the_same_id_is_not_taken_for_its_own() -> None:
    # The server counts its ids from 0 in every answer.
    made = handing_over(("call_0", "refused"))
    first, second = made.transitions
    again = replace(second, call_id="ca_2", step=2, action=first.action, start_ns=at(400), end_ns=at(500))
    last = replace(second, call_id="ca_3", step=3, start_ns=at(600), end_ns=at(700))
    # What ca_2 asked was never answered: ca_3 still has the first reply only.
    assert [call for call, _ in found(rollout([first, second, again, last]), RefusedHandoff(weight=-1))] == [
        "ca_0"
    ]


def test_an_agent_with_other_instructions_may_tell_the_reply() -> None:
    made = handing_over(("id_1", "refused"))
    first, second = made.transitions
    rewritten = [{"role": "tool", "tool_call_id": "id_1", "content": "refused"}]
    other = replace(second, observation={"messages": rewritten})
    assert len(found(rollout([first, other]), RefusedHandoff(weight=-1))) == 1


def test_the_same_action_again_is_found() -> None:
    tea, milk = ("search", {"q": "tea"}), ("search", {"q": "milk"})
    made = rollout(calls(asks(tea), asks(tea), asks(milk), asks(tea), says("tea"), says("tea")))
    assert [call_id for call_id, _ in found(made, RepeatedAction(weight=-1))] == ["ca_1", "ca_5"]
    assert [call_id for call_id, _ in found(made, RepeatedAction(weight=-1, within=2))] == [
        "ca_1",
        "ca_3",
        "ca_5",
    ]


def test_two_agents_that_say_the_same_repeat_nothing() -> None:
    first, second = calls(says("tea"), says("tea"))
    assert found(rollout([first, replace(second, agent="critic")]), RepeatedAction(weight=-1)) == []


def test_an_answer_of_nothing_is_found() -> None:
    thought = says("  ", reasoning_content="hm")
    made = rollout(calls(says(None), thought, asks(("search", {})), says("tea"), says(None, refusal="no")))
    assert [call_id for call_id, _ in found(made, EmptyAnswer(weight=-1))] == ["ca_0", "ca_1"]


def test_what_the_agent_did_not_go_on_from_is_no_action() -> None:
    for reason in ("error", "cancelled", "unreadable", "unused_choice", "ambiguous_choice"):
        assert found(rollout(calls(says(None), drop_reason=reason)), EmptyAnswer(weight=-1)) == []
    assert found(rollout(calls(says(None), drop_reason="no_token_ids")), EmptyAnswer(weight=-1))


def test_findings_add_to_what_was_emitted() -> None:
    emitted = reward(1.0, call_id="ca_1", components={"correct": 1.0}, bound="call")
    first, last = calls(asks(("search", {})), says("tea"))

    before = rollout(
        [
            replace(first, return_to_go=1.0),
            replace(
                last,
                reward=1.0,
                reward_components={"correct": 1.0},
                reward_scopes={"sc_1": 1.0},
                return_to_go=1.0,
            ),
        ],
        rewards=[emitted],
        return_=1.0,
        tools=[failed("search", 110), failed("search", 120), failed("search", -1)],
    )
    after = apply_air(
        before, [ToolError(weight=-0.25, name="broke"), Function(name="short", weight=0.5, function=_last)]
    )
    # ca_0: two tools, 2 · -0.25. ca_1: 1 + 0.5. The third tool began before any call: in the return alone.
    assert [(each.reward, each.return_to_go) for each in after.transitions] == [(-0.5, 1.0), (1.5, 1.5)]
    assert [each.reward_components for each in after.transitions] == [
        {"air.broke": -0.5},
        {"correct": 1.0, "air.short": 0.5},
    ]
    assert [each.reward_scopes for each in after.transitions] == [{"sc_1": -0.5}, {"sc_1": 1.5}]
    assert after.return_ == 0.75  # 1 - 3 · 0.25 + 0.5
    assert after.rewards[0] == emitted
    assert [(each.bound, each.call_id, each.value) for each in after.rewards[1:]] == [
        ("call", "ca_0", -0.25),
        ("call", "ca_0", -0.25),
        ("none", None, -0.25),
        ("call", "ca_1", 0.5),
    ]
    assert before.return_ == 1.0
    assert before.transitions[0].reward == 0.0


def _last(episode: Episode) -> list[Finding]:
    return [Finding(episode.transitions[-1].call_id, seen="short")]


def test_without_findings_the_episode_is_the_same() -> None:
    made = rollout(calls(says("tea")))
    assert apply_air(made, [EmptyAnswer(weight=-1)]) is made
    assert apply_air(made, []) is made


def test_a_rollout_without_any_reward_gets_none() -> None:
    made = rollout(calls(says(None)), return_=None)
    assert apply_air(made, [EmptyAnswer(weight=-1)]).return_ is None


def test_a_reward_that_was_replaced_does_not_come_back() -> None:
    made = rollout(
        calls(says(None)),
        rewards=[reward(5.0, reward_id="judge", replaced=True), reward(1.0, reward_id="judge")],
        return_=1.0,
    )
    after = apply_air(made, [EmptyAnswer(weight=-0.5)])
    assert (after.return_, after.transitions[0].return_to_go) == (0.5, 0.5)


def test_a_function_that_names_a_strange_call_is_refused() -> None:
    rule = Function(name="mine", weight=1, function=lambda episode: [Finding("ca_9")])
    with pytest.raises(ConfigError, match="'mine' found choice 0 of call 'ca_9'"):
        find_air(rollout(calls(says("tea"))), [rule])


@pytest.mark.parametrize(
    "found",
    [None, 3, "ca_1", Finding("ca_1"), ["ca_1"], [("ca_1", 0, "")], [Finding(["ca_1"])]],  # type: ignore[arg-type]
)
def test_a_function_that_gives_no_findings_is_refused(found: Any) -> None:
    rule = Function(name="mine", weight=1, function=lambda episode: found)
    with pytest.raises(ConfigError, match=r"the AIR rule 'mine' gave .*; give Findings of call_id"):
        find_air(rollout(calls(says("tea"))), [rule])


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="'empty_answer'"):
        find_air(rollout([]), [EmptyAnswer(weight=1), EmptyAnswer(weight=2)])


def test_rules_are_declared_in_tables() -> None:
    tables = {
        "tool_error": {"weight": -0.1},
        "slow_query": {"rule": "sql_error", "tools": "query*", "weight": -1},
        "again": {"rule": "repeated_action", "within": 3, "weight": -0.2},
        "mine": {"rule": "function", "function": "posixpath:basename", "weight": 1.0},
    }

    assert rules_from_config(tables) == (
        ToolError(weight=-0.1),
        SqlError(name="slow_query", tools="query*", weight=-1),
        RepeatedAction(name="again", within=3, weight=-0.2),
        Function(name="mine", function=basename, weight=1.0),
    )
    assert rules_from_config({}) == ()


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (-0.1, "give a table"),
        ({}, "has no weight"),
        ({"weight": float("nan")}, "finite number"),
        ({"weight": True}, "finite number"),
        ({"weight": "1"}, "finite number"),
        ({"weight": 1, "wait": 2}, "'wait'; tool_error takes weight, tools"),
        ({"weight": 1, "tools": ["a"]}, "give a pattern"),
        ({"weight": 1, "rule": "tool_eror"}, "no AIR rule 'tool_eror'; rule = is one of tool_error"),
        ({"weight": 1, "rule": "repeated_action", "within": 0}, "give at least 1"),
        ({"weight": 1, "rule": "refused_handoff", "refusal": "(no"}, "no regular expression"),
        ({"weight": 1, "rule": "refused_handoff", "refusal": 3}, "no regular expression"),
        ({"weight": 1, "rule": "refused_handoff", "tools": 3}, "give a pattern"),
        ({"weight": 1, "rule": "function"}, "has no function"),
        ({"weight": 1, "rule": "function", "function": "posixpath"}, "give 'package.module:function'"),
        ({"weight": 1, "rule": "function", "function": "posixpath:nothing"}, "cannot be imported"),
        ({"weight": 1, "rule": "function", "function": "posixpath:sep"}, "cannot be called"),
    ],
)
def test_what_cannot_be_used_is_refused(table: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        rules_from_config({"tool_error": table})
