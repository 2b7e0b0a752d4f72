"""Rollouts of programs that do not use our client: their records are those of any rollout.

1. The first call begins a rollout, or `start` does, which says more; `end` ends it, what is silent is lost.
2. A call is its wire bytes with the engine's tokens, so that it assembles to a transition.
3. What is said again changes nothing; what contradicts is refused.
4. Ids are bytes from outside; the number of open rollouts is bounded.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from lightning_sdk.mdp import Episode, assemble
from lightning_sdk.policy.harness import Harness
from lightning_sdk.records import OUTCOMES, SourcedRecord
from support.policy_fakes import END, MemoryWriter, scripted_policies, served
from support.waiting import wait_until

USER: Any = {"role": "user", "content": "hi"}
PRODUCER = b"p" * 16


def _episodes(writer: MemoryWriter) -> list[Episode]:
    return assemble(SourcedRecord(PRODUCER, place, record) for place, record in enumerate(writer.records, 1))


def _client(url: str, rollout: str, **options: Any) -> OpenAI:
    return OpenAI(
        base_url=url.replace("/v1", f"/r/{rollout}/v1"),
        api_key="unused",
        max_retries=0,
        timeout=20,
        **options,
    )


def _post(url: str, rollout: str, what: str, body: Any = None, **options: Any) -> httpx2.Response:
    return httpx2.post(url.replace("/v1", f"/r/{rollout}/{what}"), json=body or {}, timeout=20, **options)


def test_two_calls_a_reward_and_an_end_are_a_rollout_like_any() -> None:
    policies, _, writer = scripted_policies("ab", "cd")
    with served(policies, harness=Harness(writer, run_id="run_1")) as url:
        assert _post(
            url,
            "r-1",
            "start",
            {"task_id": 7, "split": "train", "group": "g", "metadata": {"difficulty": 3}},
        ).json() == {"rollout": "r-1", "attempt": 1, "group": "g"}
        create = _client(url, "r-1").chat.completions.create
        first = create(model="gpt-9", messages=[USER], temperature=0)
        chunks = list(create(model="scripted", messages=[USER], stream=True))
        assert _post(url, "r-1", "reward", {"components": {"right": 1, "short": 0.5}}).status_code == 200
        assert _post(url, "r-1", "end").json()["outcome"] == "succeeded"
    (episode,) = _episodes(writer)
    assert (episode.rollout_id, episode.run_id, episode.task_id) == ("r-1", "run_1", "7")
    assert (episode.split, episode.group_id, episode.project) == ("train", "g", "default")
    assert (episode.outcome, episode.complete, episode.attempt) == ("succeeded", True, 1)
    assert episode.metadata == {"difficulty": 3}
    assert episode.return_ == 1.5
    one, other = episode.transitions
    assert [list(each.response_token_ids or ()) for each in (one, other)] == [[97, 98, END], [99, 100, END]]
    assert (one.fidelity, one.policy, one.drop_reason) == ("engine", "scripted", None)
    assert one.observation["messages"] == [USER]
    assert one.sampling["effective"]["temperature"] == 1.0  # as the policy is trained
    assert first.choices[0].message.content == "ab"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "cd"
    assert (one.reward, other.reward) == (0.0, 1.5)  # to the last call


def test_the_first_call_begins_a_rollout_whose_group_is_its_own() -> None:
    policies, _, writer = scripted_policies("a")
    with served(policies, harness=Harness(writer)) as url:
        _client(url, "x").chat.completions.create(model="scripted", messages=[USER])
        assert _post(url, "x", "end", {"error": {"type": "TypeError", "message": "no"}}).status_code == 200
    (episode,) = _episodes(writer)
    assert (episode.group_id, episode.outcome, episode.error) == ("x", "failed", "TypeError: no")
    assert episode.complete
    assert len(episode.transitions) == 1


def test_rollouts_of_one_task_share_a_group() -> None:
    policies, _, writer = scripted_policies()
    with served(policies, harness=Harness(writer)) as url:
        groups = [_post(url, name, "start", {"task_id": "t"}).json()["group"] for name in ("a", "b")]
        assert _post(url, "c", "start", {"task_id": "u"}).json()["group"] not in groups
    assert groups[0] == groups[1]


def test_a_refused_call_and_one_whose_client_leaves_are_told_with_what_became_of_them() -> None:
    policies, engine, writer = scripted_policies("abc")
    engine.gate = asyncio.Semaphore(1)
    with served(policies, harness=Harness(writer)) as url:
        client = _client(url, "r")
        with pytest.raises(Exception, match="tool_choice"):
            client.chat.completions.create(
                model="scripted", messages=[USER], extra_body={"tool_choice": "required"}
            )
        stream = client.chat.completions.create(model="scripted", messages=[USER], stream=True)
        next(iter(stream))
        stream.close()
        wait_until(lambda: sum(record.HasField("call") for record in writer.records) == 2)
        _post(url, "r", "end")
    refused, left = [record.call for record in writer.records if record.HasField("call")]
    assert (refused.outcome, refused.status) == (OUTCOMES["error"], 400)
    assert refused.error.type == "unsupported_parameter"
    assert json.loads(refused.response)["error"]["param"] == "tool_choice"
    assert (left.outcome, left.streamed, left.status) == (OUTCOMES["closed_early"], True, 200)
    (episode,) = _episodes(writer)
    assert episode.complete


def test_an_end_waits_for_the_calls_that_run_before_the_endpoint_leaves() -> None:
    policies, engine, writer = scripted_policies("abc")
    engine.gate = asyncio.Semaphore(1)
    with served(policies, harness=Harness(writer)) as url:
        stream = _client(url, "r").chat.completions.create(model="scripted", messages=[USER], stream=True)
        next(iter(stream))
        _post(url, "r", "end")
        assert not any(record.HasField("leave") for record in writer.records)
        stream.close()
        wait_until(lambda: any(record.HasField("leave") for record in writer.records))
    (episode,) = _episodes(writer)
    assert (episode.outcome, episode.complete) == ("succeeded", True)


def test_a_reward_that_is_sent_again_with_its_id_counts_once_and_one_without_gets_an_id() -> None:
    policies, _, writer = scripted_policies("a")
    with served(policies, harness=Harness(writer)) as url:
        _client(url, "r").chat.completions.create(model="scripted", messages=[USER])
        for _ in range(3):
            assert _post(url, "r", "reward", {"value": 1, "reward_id": "one"}).json()["reward_id"] == "one"
        made = {_post(url, "r", "reward", {"value": 0.25}).json()["reward_id"] for _ in range(2)}
        _post(url, "r", "end")
        late = _post(url, "r", "reward", {"value": 2}).json()["reward_id"]
    assert len(made | {late}) == 3
    (episode,) = _episodes(writer)
    assert episode.return_ == 3.5
    assert episode.complete  # what comes after the end was not promised


def test_what_is_said_again_changes_nothing_and_what_contradicts_is_refused() -> None:
    policies, _, writer = scripted_policies("a")
    with served(policies, harness=Harness(writer)) as url:
        start: Any = {"task_id": "t", "attempt": 2}
        assert [_post(url, "r", "start", start).status_code for _ in range(2)] == [200, 200]
        assert _post(url, "r", "start", {"task_id": "u", "attempt": 2}).status_code == 409
        assert _post(url, "r", "start", {"attempt": 1}).json()["error"]["code"] == "rollout_started"
        assert [_post(url, "r", "end").status_code for _ in range(2)] == [200, 200]
        assert _post(url, "r", "end", {"outcome": "cancelled"}).status_code == 409
        late = _post(url, "r", "v1/chat/completions", {"model": "scripted", "messages": [USER]})
        assert (late.status_code, late.json()["error"]["code"]) == (409, "rollout_ended")
        assert _post(url, "nobody", "end").json()["error"]["code"] == "rollout_not_found"
        # Another attempt is another life.
        assert _post(url, "r", "start", {"attempt": 3}).status_code == 200
        assert _post(url, "r", "end", {"truncation_reason": "timeout"}).json()["outcome"] == "truncated"
    (episode,) = _episodes(writer)
    assert (episode.attempt, episode.outcome, episode.truncation_reason) == (3, "truncated", "timeout")
    assert sum(record.HasField("rollout_start") for record in writer.records) == 2


@pytest.mark.parametrize("rollout", ["-r", ".r", "a b", "x" * 129, "r%00", "%F0%9F%98%80", "a%2Fb", "a%0Ab"])
def test_an_id_that_is_none_begins_nothing(rollout: str) -> None:
    policies, _, writer = scripted_policies("a")
    with served(policies, harness=Harness(writer)) as url:
        for what in ("start", "reward", "end", "v1/chat/completions"):
            body = {"value": 1} if what == "reward" else {"model": "scripted", "messages": [USER]}
            body = {} if what in ("start", "end") else body
            assert _post(url, rollout, what, body).status_code in (400, 404)
    assert writer.records == []


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("reward", {}),
        ("reward", {"value": "1"}),
        ("reward", {"value": 1, "components": {"a": 1}}),
        ("reward", {"components": {}}),
        ("reward", {"components": {"a": 1e308, "b": 1e308}}),
        ("end", {"outcome": "won"}),
        ("end", {"outcome": "truncated"}),
        ("end", {"outcome": "failed", "truncation_reason": "timeout"}),
        ("start", {"attempt": 0}),
        ("start", {"tsak_id": "7"}),
        ("start", {"split": "x" * 257}),
    ],
)
def test_what_cannot_be_meant_is_a_400(what: str, body: Any) -> None:
    policies, _, writer = scripted_policies()
    with served(policies, harness=Harness(writer)) as url:
        refused = _post(url, "r", what, body)
    assert refused.status_code == 400
    assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
    assert writer.records == []


def test_no_more_rollouts_are_open_than_may_be() -> None:
    policies, _, writer = scripted_policies()
    with served(policies, harness=Harness(writer, max_open=2)) as url:
        assert [_post(url, name, "start").status_code for name in "abc"] == [200, 200, 429]
        _post(url, "a", "end")
        assert _post(url, "c", "start").status_code == 200


def test_what_nothing_is_heard_of_is_lost_and_goes_on_when_it_was_only_slow() -> None:
    policies, _, writer = scripted_policies("a")
    with served(policies, harness=Harness(writer, idle_timeout_s=0.05)) as url:
        _post(url, "slow", "start")
        wait_until(lambda: any(record.HasField("leave") for record in writer.records))
        assert _episodes(writer)[0].outcome == "lost"
        _client(url, "slow").chat.completions.create(model="scripted", messages=[USER])
        _post(url, "slow", "end")
    (episode,) = _episodes(writer)
    assert (episode.outcome, episode.complete, len(episode.transitions)) == ("succeeded", True, 1)


def test_rollouts_that_are_open_when_the_endpoint_ends_are_lost() -> None:
    writer = MemoryWriter()
    policies, _, _ = scripted_policies()
    harness = Harness(writer)
    with served(policies, harness=harness) as url:
        _post(url, "r", "start")
    harness.close()
    (episode,) = _episodes(writer)
    assert (episode.outcome, episode.complete) == ("lost", True)


def test_a_spool_that_fails_fails_no_call_but_says_that_a_reward_is_not_kept() -> None:
    policies, _, writer = scripted_policies("a")
    harness = Harness(writer)
    with served(policies, harness=harness) as url:
        _post(url, "r", "start")
        writer.broken = True
        answer = _client(url, "r").chat.completions.create(model="scripted", messages=[USER])
        assert answer.choices[0].message.content == "a"
        assert _post(url, "r", "reward", {"value": 1}).status_code == 503
        assert _post(url, "r", "end").status_code == 503
        writer.broken = False
        assert _post(url, "r", "end").status_code == 200
    (episode,) = _episodes(writer)
    assert not episode.complete
    assert harness.failures == 3


def test_the_token_guards_rollouts_too() -> None:
    policies, _, writer = scripted_policies("a")
    with served(policies, token="sesame", harness=Harness(writer)) as url:
        for what in ("start", "reward", "end", "v1/chat/completions"):
            assert _post(url, "r", what).status_code == 401
        headers = {"authorization": "Bearer sesame"}
        assert _post(url, "r", "start", headers=headers).status_code == 200
    assert len(writer.records) == 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_is_enough() -> None:
    policies, _, writer = scripted_policies("ok")
    with served(policies, harness=Harness(writer)) as url:
        base = url.replace("/v1", "/r/shell-1")

        def curl(path: str, body: str) -> Any:
            command = ["curl", "-sS", "--fail-with-body", "--max-time", "20", f"{base}/{path}"]
            told = [*command, "-H", "content-type: application/json", "-d", body]
            return json.loads(subprocess.run(told, check=True, capture_output=True).stdout)

        answer = curl("v1/chat/completions", json.dumps({"model": "any", "messages": [USER]}))
        assert answer["choices"][0]["message"]["content"] == "ok"
        curl("reward", '{"value": 1}')
        curl("end", "{}")
    (episode,) = _episodes(writer)
    assert (episode.return_, episode.outcome, len(episode.transitions)) == (1.0, "succeeded", 1)
