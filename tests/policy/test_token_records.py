"""The Tokens record of an answer: the engine's ids, under the caller's call id, before the answer ends."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from openai import OpenAI

from lightning_sdk.plugins import CALL_ID
from lightning_sdk.policy.recording import choose_call_id
from lightning_sdk.records import Record, unpack_float32, unpack_int32
from support.policy_fakes import END, ByteTokenizer, MemoryWriter, scripted_policies, served

USER: Any = {"role": "user", "content": "hi"}
HEADER = "x-lightning-call-id"


def _client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=20)


def test_a_record_says_what_the_engine_knows() -> None:
    policies, engine, writer = scripted_policies("abc")
    with served(policies) as url:
        answer = _client(url).chat.completions.create(
            model="scripted",
            messages=[USER],
            temperature=0.5,
            n=2,
            seed=3,
            extra_headers={HEADER: "ca_0123"},
        )
    (record,) = writer.records
    tokens = record.tokens
    assert (record.order, record.rollout_id) == (1, "")
    assert 0 < record.start_ns <= record.end_ns
    assert (tokens.call_id, tokens.response_id) == ("ca_0123", answer.id)
    assert (tokens.policy, tokens.policy_version, tokens.policy_version_end) == ("scripted", 0, 0)
    assert list(unpack_int32(tokens.prompt_token_ids)) == ByteTokenizer().encode(engine.prompts[0])
    assert [choice.index for choice in tokens.choices] == [0, 1]
    for choice in tokens.choices:
        assert list(unpack_int32(choice.token_ids)) == [*b"abc", END]
        assert list(unpack_float32(choice.logprobs)) == [-0.5, -1.5, -2.5, -3.5]
        assert choice.finish_reason == "stop"
    assert json.loads(tokens.sampling_requested) == {"temperature": 0.5, "n": 2, "seed": 3}
    assert json.loads(tokens.sampling_effective) == {
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": 3,
        "n": 2,
        "stop": [],
        "max_tokens": engine.params[0].max_tokens,
    }
    assert tokens.logprobs_mode == "processed"


def test_greedy_log_probabilities_are_the_models_own_and_marked_so() -> None:
    policies, engine, writer = scripted_policies("a", "a")
    with served(policies) as url:
        for temperature in (0, 1e-9):
            _client(url).chat.completions.create(model="scripted", messages=[USER], temperature=temperature)
    assert [params.temperature for params in engine.params] == [0, 0]
    assert [record.tokens.logprobs_mode for record in writer.records] == ["raw", "raw"]
    assert json.loads(writer.records[1].tokens.sampling_requested) == {"temperature": 1e-9}
    assert json.loads(writer.records[1].tokens.sampling_effective)["temperature"] == 0


def test_policy_versions_are_those_that_sampled_the_first_and_the_last_token() -> None:
    policies, engine, writer = scripted_policies("abc", "de")
    engine.policy_version = 5
    engine.updates_a_token = 1
    with served(policies) as url:
        _client(url).chat.completions.create(model="scripted", messages=[USER])
        list(_client(url).chat.completions.create(model="scripted", messages=[USER], stream=True))
    # "abc" and its end by versions 5 to 8, "de" and its end by 9 to 11: no update since counts.
    assert [(each.tokens.policy_version, each.tokens.policy_version_end) for each in writer.records] == [
        (5, 8),
        (9, 11),
    ]


def test_a_stop_string_adds_no_token_and_takes_none_away() -> None:
    policies, _, writer = scripted_policies("one. two")
    with served(policies) as url:
        _client(url).chat.completions.create(model="scripted", messages=[USER], stop=". t")
    choice = writer.records[0].tokens.choices[0]
    assert bytes(unpack_int32(choice.token_ids).tolist()) == b"one. t"


@pytest.mark.parametrize("sent", ["", "with space", "x" * 129, "a/b"])
def test_a_call_id_that_cannot_be_kept_is_replaced_and_the_answer_says_by_which(sent: str) -> None:
    policies, _, writer = scripted_policies("ok")
    with served(policies) as url:
        raw = _client(url).chat.completions.with_raw_response.create(
            model="scripted",
            messages=[USER],
            extra_headers={HEADER: sent},
        )
    answered = raw.headers[HEADER]
    assert answered.startswith("ca_")
    assert writer.records[0].tokens.call_id == answered


@pytest.mark.parametrize("sent", ["ca_0123", "a.b:c-d_E9", "x" * 128])
def test_a_call_id_of_the_pattern_in_plugins_is_kept(sent: str) -> None:
    assert CALL_ID.fullmatch(sent)
    assert choose_call_id(sent) == sent


def test_refusals_and_streams_carry_the_call_id_too() -> None:
    policies, _, _ = scripted_policies("ok")
    with served(policies) as url:
        create = _client(url).chat.completions.with_raw_response.create
        streamed = create(model="scripted", messages=[USER], stream=True, extra_headers={HEADER: "ca_1"})
        assert streamed.headers[HEADER] == "ca_1"
        with pytest.raises(Exception, match="does not exist") as caught:
            create(model="other", messages=[USER], extra_headers={HEADER: "ca_2"})
    assert caught.value.response.headers[HEADER] == "ca_2"  # type: ignore[attr-defined]


def test_the_record_is_there_when_the_last_finish_reason_arrives() -> None:
    policies, _, writer = scripted_policies("abc")
    with served(policies) as url:
        for chunk in _client(url).chat.completions.create(model="scripted", messages=[USER], stream=True):
            if chunk.choices[0].finish_reason is not None:
                assert len(writer.records) == 1
                return
    raise AssertionError("no finish reason came")


def test_a_spool_that_fails_fails_no_answer_and_is_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policies, _, writer = scripted_policies("a", "b")
    writer.broken = True
    with caplog.at_level(logging.ERROR, "lightning_sdk.policy"), served(policies) as url:
        for text in ("a", "b"):
            answer = _client(url).chat.completions.create(model="scripted", messages=[USER])
            assert answer.choices[0].message.content == text
    assert policies.default.recorder.failures == 2
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert len(caplog.records) == 1


def test_what_is_written_is_a_whole_record() -> None:
    policies, _, writer = scripted_policies("a")
    with served(policies) as url:
        _client(url).chat.completions.create(model="scripted", messages=[USER])
    assert isinstance(writer, MemoryWriter)
    assert Record.FromString(writer.records[0].SerializeToString()) == writer.records[0]
