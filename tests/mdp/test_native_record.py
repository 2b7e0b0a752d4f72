"""The native dataset record: its keys in their order, and nothing in it that JSON cannot say."""

from __future__ import annotations

import json

from lightning_sdk.mdp import NATIVE_SCHEMA_VERSION, assemble, native_record
from support.record_factory import Tape, chat_body, chat_request

KEYS = [
    "schema_version",
    "project",
    "run_id",
    "group_id",
    "rollout_id",
    "task_id",
    "attempt",
    "agent",
    "invocation_id",
    "step",
    "call_id",
    "choice",
    "parent_call_id",
    "next_call_id",
    "order",
    "late",
    "model",
    "policy",
    "policy_version",
    "policy_version_end",
    "fidelity",
    "start_ns",
    "end_ns",
    "observation",
    "sampling",
    "logprobs_mode",
    "action",
    "prompt_token_ids",
    "response_token_ids",
    "response_logprobs",
    "reward",
    "reward_components",
    "reward_scopes",
    "return_to_go",
    "terminated",
    "truncated",
    "truncation_reason",
    "outcome",
    "drop_reason",
    "split",
    "metadata",
]


def test_keys_are_those_of_the_contract_in_their_order() -> None:
    tape = Tape()
    tape.call("a")
    (transition,) = assemble(tape.records)[0].transitions
    record = native_record(transition)
    assert list(record) == KEYS
    assert record["schema_version"] == NATIVE_SCHEMA_VERSION
    assert list(record["observation"]) == [
        "messages",
        "tools",
        "tool_choice",
        "response_format",
        "chat_template_kwargs",
    ]
    assert list(record["sampling"]) == ["requested", "effective"]
    assert list(record["action"]) == ["message", "finish_reason"]


def test_ids_are_lists_and_survive_json() -> None:
    tape = Tape()
    tape.call("a", chat_body("x", id="re_a"), scope="sc")
    tape.reward(2, "call", call="a")
    tape.tokens("a", [1, 2], [3, 4], logprobs=[[-0.5, -0.25]], response_id="re_a", version=7)
    (transition,) = assemble(tape.records)[0].transitions
    record = json.loads(json.dumps(native_record(transition), allow_nan=False))
    assert record == native_record(transition)
    assert record["prompt_token_ids"] == [1, 2]
    assert record["response_token_ids"] == [3, 4]
    assert record["response_logprobs"] == [-0.5, -0.25]
    assert (record["policy"], record["policy_version"], record["logprobs_mode"]) == ("policy", 7, "processed")
    assert (record["reward"], record["reward_components"], record["reward_scopes"]) == (
        2.0,
        {"reward": 2.0},
        {"sc": 2.0},
    )


def test_what_is_not_known_is_null() -> None:
    tape = Tape(rollout="", group="")
    tape.call("a", b"", request=b"", outcome="error", agent="")
    (transition,) = assemble(tape.records)[0].transitions
    record = native_record(transition)
    unknown = [key for key, value in record.items() if value is None]
    assert unknown == [
        *(
            "rollout_id",
            "task_id",
            "agent",
            "invocation_id",
            "parent_call_id",
            "next_call_id",
            "model",
            "policy",
        ),
        *("policy_version", "policy_version_end", "logprobs_mode", "action", "prompt_token_ids"),
        *("response_token_ids", "response_logprobs", "reward", "reward_components", "reward_scopes"),
        *("return_to_go", "split"),
    ]


def test_at_text_fidelity_the_parent_is_what_the_messages_go_on_from() -> None:
    tape = Tape()
    tape.start()
    tape.call("a", chat_body("cat"), request=chat_request("q"))
    tape.call("other", chat_body("fox"), request=chat_request("x"))
    tape.call("b", chat_body("dog"), request=chat_request("q", "cat", "r"))
    tape.call("edited", chat_body("emu"), request=chat_request("q", "hat", "r"))
    told = [
        (each.call_id, each.parent_call_id, each.fidelity) for each in assemble(tape.records)[0].transitions
    ]
    assert told == [
        ("a", None, "text"),
        ("other", None, "text"),
        ("b", "a", "text"),
        ("edited", None, "text"),
    ]


def test_ids_and_messages_are_never_mixed_for_a_parent() -> None:
    tape = Tape()
    tape.start()
    tape.call("ids", chat_body("cat", prompt_ids=[1], ids=[[2]]), request=chat_request("q"))
    tape.call("text", chat_body("dog"), request=chat_request("q", "cat", "r"))
    assert [each.parent_call_id for each in assemble(tape.records)[0].transitions] == [None, None]


def test_a_call_that_was_sent_after_the_end_is_late_and_kept() -> None:
    tape = Tape()
    tape.start()
    early = tape.tick()
    tape.end()
    tape.call("answered after the end", begun=early)
    tape.call("late")
    tape.leave()
    (episode,) = assemble(tape.records)
    assert [(each.call_id, each.late) for each in episode.transitions] == [
        ("answered after the end", False),
        ("late", True),
    ]
    assert episode.complete
