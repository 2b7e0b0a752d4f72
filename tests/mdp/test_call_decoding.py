"""One call record, understood.

1. Request and response are parsed; the response's model and id are the call's.
2. Token ids come from the endpoint's record of the same response, else from the body.
3. Ids are believed only if they agree with log probabilities and usage; else the call is of text fidelity.
4. Bytes that cannot be read are a problem of that call, never an error.
"""

from __future__ import annotations

from typing import Any

import pytest

from lightning_sdk.mdp import CallView, decode_call
from lightning_sdk.records import SourcedRecord, Tokens
from support.record_factory import Tape, chat_body, chat_request, to_json


def view(
    body: dict[str, Any] | bytes | None = None, tokens: list[Tokens] | None = None, **fields: Any
) -> CallView:
    tape = Tape()
    tape.call("ca_1", body, **fields)
    return decode_call(tape.records[-1], tokens or [])


def told(prompt: list[int], *responses: list[int], **fields: Any) -> Tokens:
    return Tape().tokens("ca_1", prompt, *responses, **fields).tokens


def test_a_call_tells_what_was_asked_and_answered() -> None:
    call = view(
        chat_body("hi", id="re_1", usage={"prompt_tokens": 2, "completion_tokens": 1}),
        request=chat_request("hello", temperature=0.5),
    )
    assert call.request["messages"] == [{"role": "user", "content": "hello"}]
    assert call.request_bytes == to_json(call.request)
    assert call.response["id"] == call.response_id == "re_1"
    assert call.model == "tiny-1"
    assert call.usage == {"prompt_tokens": 2, "completion_tokens": 1}
    assert [(c.index, c.message["content"], c.finish_reason) for c in call.choices] == [(0, "hi", "stop")]
    assert (call.outcome, call.attempts, call.status, call.streamed) == ("ok", 1, 200, False)
    assert call.sampling == {"requested": {"temperature": 0.5}, "effective": None}
    assert (call.fidelity, call.problem, call.policy_version) == ("text", "no_token_ids", None)


def test_a_stream_is_put_together() -> None:
    call = view(
        events=[
            {
                "id": "re_1",
                "model": "m",
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": "h"}}],
            },
            {"id": "re_1", "choices": [{"index": 0, "delta": {"content": "i"}, "finish_reason": "stop"}]},
            b"[DONE]",
        ]
    )
    assert call.choices[0].message == {"role": "assistant", "content": "hi"}
    assert call.streamed
    assert call.problem == "no_token_ids"


def test_ids_in_the_body_are_the_engines() -> None:
    call = view(
        chat_body("hi", prompt_ids=[1, 2], ids=[[3, 4]], usage={"prompt_tokens": 2, "completion_tokens": 2})
    )
    assert call.fidelity == "engine"
    assert call.problem is None
    assert list(call.prompt_token_ids or ()) == [1, 2]
    assert list(call.choices[0].token_ids or ()) == [3, 4]
    assert call.choices[0].logprobs is None
    assert call.policy is None


def test_the_endpoints_record_is_preferred_and_tells_policy_and_sampling() -> None:
    tokens = told(
        [1, 2],
        [3, 4],
        logprobs=[[-0.5, -1.0]],
        response_id="chatcmpl-1",
        version=0,
        sampling_requested=b'{"temperature": 0.2}',
        sampling_effective=b'{"temperature": 1.0}',
    )
    call = view(chat_body("hi", prompt_ids=[9], ids=[[9]]), [tokens])
    assert list(call.prompt_token_ids or ()) == [1, 2]
    assert list(call.choices[0].token_ids or ()) == [3, 4]
    assert list(call.choices[0].logprobs or ()) == [-0.5, -1.0]
    assert (call.policy, call.policy_version, call.policy_version_end) == ("policy", 0, 0)
    assert call.logprobs_mode == "processed"
    assert call.sampling == {"requested": {"temperature": 0.2}, "effective": {"temperature": 1.0}}


def test_of_several_attempts_the_one_that_the_client_got_counts() -> None:
    attempts = [told([1], [at], response_id=f"re_{at}", version=at) for at in (1, 2, 3)]
    call = view(chat_body("hi", id="re_2"), attempts)
    assert list(call.choices[0].token_ids or ()) == [2]
    assert call.policy_version == 2


@pytest.mark.parametrize("count", [1, 2])
def test_ids_of_another_attempt_are_not_believed(count: int) -> None:
    call = view(chat_body("hi", id="re_9"), [told([1], [at], response_id=f"re_{at}") for at in range(count)])
    assert (call.fidelity, call.problem, call.policy) == ("text", "id_check_failed", None)


def test_the_only_record_counts_where_the_endpoint_told_no_response_id() -> None:
    assert view(chat_body("hi"), [told([1], [2])]).fidelity == "engine"


@pytest.mark.parametrize(
    ("tokens", "usage"),
    [
        (told([1, 2], [3, 4], logprobs=[[-0.5]]), None),
        (told([1, 2], [3, 4], logprobs=[[-0.5, float("nan")]]), None),
        (told([1, 2], [3, 4], logprobs=[[-0.5, float("-inf")]]), None),
        (told([1, 2], [3, 4]), {"completion_tokens": 3}),
        (told([1, 2], [3, 4]), {"prompt_tokens": 1}),
        (told([1, -2], [3, 4]), None),
        (told([1, 2]), None),
        (told([1, 2], [3, 4], prompt_token_ids=b"123"), None),
    ],
    ids=[
        "log probabilities missing",
        "nan",
        "infinite",
        "more sampled than ids",
        "fewer in the prompt than ids",
        "negative id",
        "choice missing",
        "not whole ids",
    ],
)
def test_ids_that_do_not_agree_are_not_believed(tokens: Tokens, usage: dict[str, int] | None) -> None:
    call = view(chat_body("hi", usage=usage), [tokens])
    assert (call.fidelity, call.problem) == ("text", "id_check_failed")
    assert call.prompt_token_ids is None
    assert call.choices[0].token_ids is None


def test_usage_counts_the_tokens_of_all_choices() -> None:
    body = chat_body("a", "b", prompt_ids=[1], ids=[[2], [3, 4]], usage={"completion_tokens": 3})
    assert view(body).fidelity == "engine"


@pytest.mark.parametrize("ids", [["x"], [1.5], [2**40], [-1], [None]])
def test_ids_in_the_body_that_are_no_token_ids_are_not_believed(ids: list[Any]) -> None:
    assert view(chat_body("hi", prompt_ids=[1], ids=[ids])).problem == "id_check_failed"


def test_log_probabilities_without_ids_are_kept_as_text_fidelity() -> None:
    body = chat_body("hi")
    body["choices"][0]["logprobs"] = {"content": [{"token": "hi", "logprob": -0.25}]}
    call = view(body)
    assert (call.fidelity, call.choices[0].logprobs) == ("text", [-0.25])


@pytest.mark.parametrize("outcome", ["closed_early", "abandoned"])
def test_a_stream_that_was_left_after_its_end_is_whole(outcome: Any) -> None:
    delta = {"role": "assistant", "content": "hi"}
    whole = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
    torn = {"choices": [{"index": 0, "delta": delta}]}
    assert view(events=[whole], outcome=outcome).problem == "no_token_ids"
    assert view(events=[torn], outcome=outcome).problem == "cancelled"


def test_a_failed_call_keeps_its_error() -> None:
    call = view(
        b'{"error": {"message": "slow down"}}',
        outcome="error",
        status=429,
        error={"type": "openai.RateLimitError", "message": "slow down"},
    )
    assert (call.problem, call.error) == ("error", "openai.RateLimitError: slow down")
    assert call.choices == ()


def test_a_call_cancelled_before_the_answer_is_cancelled() -> None:
    assert view(b"", outcome="cancelled").problem == "cancelled"


@pytest.mark.parametrize(
    "message", [{"role": "assistant", "content": None}, {"role": "assistant", "content": ""}]
)
def test_an_answer_without_any_content_is_empty(message: dict[str, Any]) -> None:
    assert view(chat_body(message)).problem == "empty_response"
    assert view(chat_body()).problem == "empty_response"


def test_an_end_of_turn_token_alone_is_an_answer() -> None:
    assert view(chat_body("", prompt_ids=[1], ids=[[2]])).problem is None


def test_embeddings_are_calls_without_a_problem() -> None:
    call = view(b'{"data": [{"embedding": [0.1]}]}', request=b'{"input": "x"}', api="embeddings")
    assert (call.problem, call.choices) == (None, ())
    assert call.response == {"data": [{"embedding": [0.1]}]}


def test_a_shape_that_we_do_not_know_is_kept_as_unreadable() -> None:
    call = view(b'{"output": []}', request=b'{"input": "x"}', api="images")
    assert (call.problem, call.request, call.response) == ("unreadable", {"input": "x"}, {"output": []})


HOSTILE = [
    b"",
    b"{",
    b"null",
    b"7",
    b"[]",
    b'"text"',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"[" * 5_000 + b"]" * 5_000,
    b'{"messages": ' + b"[" * 250 + b"]" * 250 + b', "choices": []}',
    b'{"messages": 1, "choices": 1}',
    b'{"messages": [1], "choices": [1]}',
    b'{"messages": [{}], "choices": [{"message": 1}]}',
    b'{"messages": NaN, "choices": NaN}',
    b'{"messages": [{"x": 1e999}], "choices": [], "x": -1e999}',
    b'{"messages": [{"x": ' + b"9" * 5000 + b'}], "choices": [], "x": ' + b"9" * 5000 + b"}",
    b'{"messages": {}, "choices": [{"message": {}, "index": -1}]}',
    b'{"messages": {}, "choices": [{"message": {}, "index": true}]}',
    b'{"messages": {}, "choices": [{"message": {}, "index": 0}, {"message": {}, "index": 0}]}',
    b'{"messages": {}, "choices": [{"message": {}, "logprobs": {"content": 7}}]}',
    b'{"messages": {}, "choices": [{"message": {}, "logprobs": {"content": [{"logprob": "x"}]}}]}',
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bytes_are_a_problem_not_an_error(data: bytes) -> None:
    assert view(data).problem == "unreadable"
    assert view(request=data).problem is not None
    assert view(events=[b'{"choices": []}', data]).problem is not None


def test_an_outcome_that_this_version_does_not_know_is_a_failure() -> None:
    tape = Tape()
    tape.call("ca_1").call.outcome = 77
    assert decode_call(tape.records[0]).problem == "error"


def test_decoding_takes_any_sequence_number_and_producer() -> None:
    record = Tape().call("ca_1")
    call = decode_call(SourcedRecord(b"q", 7, record))
    assert (call.producer, call.seq) == (b"q", 7)
