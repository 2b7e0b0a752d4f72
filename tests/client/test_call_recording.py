"""The recorder that integrations report to.

1. A call belongs to the scope in which it started, wherever and whenever it ends.
2. It is written once, as it was on the wire, without secrets.
3. Its id goes on the wire only to the configured policy endpoint.
4. Outside any rollout it is counted, and kept only in a capture.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults
from lightning_sdk.client.recorder import ProcessRecorder
from lightning_sdk.client.runtime import active
from lightning_sdk.plugins import CALL_ID_HEADER, CallRecording, Recorder
from lightning_sdk.testing import capture
from support.client_records import URL, bodies, make_call, of_kind, read_spool, start_call

SECRET = b"sk-proj-abcdefgh12345678"


def test_it_is_what_the_protocols_say() -> None:
    recorder: Recorder = ProcessRecorder()
    with capture():
        call: CallRecording | None = recorder.start_call(integration="x", api="y", url=URL, streamed=True)
    assert call is not None


def test_a_call_is_written_as_it_was_on_the_wire() -> None:
    with capture() as cap, ls.rollout():
        call = ProcessRecorder().start_call(
            integration="openai",
            api="chat.completions",
            url="https://user:pw@h:8/v1/chat?key=1#x",
            streamed=False,
        )
        assert call is not None
        call.sent(b"{}")
        call.answered(200, {})
        call.received(b'{"ok": 1}')
        call.finish("ok")
        call.finish("error", ValueError("too late"))
    records = of_kind(cap.records, "call")
    assert len(records) == 1
    written = records[0].call
    assert (written.integration, written.api, written.url) == (
        "openai",
        "chat.completions",
        "https://h:8/v1/chat",
    )
    assert (written.request, written.response, written.streamed) == (b"{}", b'{"ok": 1}', False)
    assert (written.status, written.attempts, written.outcome) == (200, 1, 1)
    assert records[0].start_ns <= records[0].end_ns


def test_a_stream_keeps_its_events_in_order_and_how_it_ended() -> None:
    with capture() as cap, ls.rollout():
        call = start_call()
        assert call is not None
        call.sent(b"{}")
        call.answered(200, {})
        call.event('{"a":1}')
        call.event(b"[DONE]")
        call.finish("closed_early")
    written = of_kind(cap.records, "call")[0].call
    assert list(written.events) == [b'{"a":1}', b"[DONE]"]
    assert written.outcome == 4


def test_a_retry_is_one_call_that_shows_the_last_attempt() -> None:
    with capture() as cap, ls.rollout():
        call = start_call()
        assert call is not None
        call.sent(b"first")
        call.answered(503, {CALL_ID_HEADER: "ca_first"})
        call.received(b"busy")
        call.sent(b"second")
        call.answered(200, {})
        call.finish("error", TimeoutError("slow"))
    written = of_kind(cap.records, "call")[0].call
    assert (written.attempts, written.request, written.response) == (2, b"second", b"")
    assert (written.status, written.endpoint_call_id) == (200, "")
    assert (written.error.type, written.error.message) == ("TimeoutError", "slow")


def test_secrets_are_gone_from_bodies_events_and_errors_and_counted() -> None:
    with capture() as cap, ls.rollout():
        call = start_call()
        assert call is not None
        call.sent(b'{"api_key": "hush", "text": "' + SECRET + b'"}')
        call.event(b'{"text": "' + SECRET + b'"}')
        call.received(b"Bearer abcdefgh.12345")
        call.finish("error", RuntimeError(f"key {SECRET.decode()} is wrong"))
    written = of_kind(cap.records, "call")[0]
    assert written.call.redactions == 4
    assert SECRET not in written.SerializeToString()
    assert b"hush" not in written.SerializeToString()
    assert b"12345" not in written.call.response


def test_the_scope_is_that_of_the_start_even_if_it_ends_in_another_thread_after_the_rollout() -> None:
    started = []

    @ls.trace_agent(name="starter")
    def start() -> None:
        started.append(start_call())

    with capture() as cap:
        start()
        thread = threading.Thread(target=lambda: started[0].finish("ok"))
        thread.start()
        thread.join()
    assert bodies(cap.records)[-2:] == ["leave", "call"]
    call = of_kind(cap.records, "call")[0]
    assert call.call.agent == "starter"
    assert call.scope_id == of_kind(cap.records, "scope_start")[0].scope_id
    assert call.order < of_kind(cap.records, "scope_end")[0].order


def test_finishing_in_many_threads_writes_once() -> None:
    with capture() as cap, ls.rollout():
        call = start_call()
        assert call is not None
        threads = [threading.Thread(target=call.finish, args=("ok",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(of_kind(cap.records, "call")) == 1


@pytest.mark.parametrize(
    ("url", "inside"),
    [
        ("http://127.0.0.1:8000/v1/chat/completions", True),
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.0.0.1:8000/v1?x=1", True),
        ("http://127.0.0.1:8000/v1beta/chat", False),
        ("http://127.0.0.1:8000/v1/../admin", False),
        ("http://127.0.0.1:8000/v1/%2e%2e/admin", False),
        ("https://127.0.0.1:8000/v1/chat", False),
        ("http://127.0.0.1:8001/v1/chat", False),
        ("http://127.0.0.1:8000@evil.example/v1/chat", False),
        ("http://localhost:8000/v1/chat", False),
        ("http://[broken/v1", False),
    ],
)
def test_the_call_id_is_sent_to_the_policy_endpoint_and_nowhere_else(url: str, inside: bool) -> None:
    ls.init(policy_endpoint="http://127.0.0.1:8000/v1/")
    with ls.rollout():
        call = start_call(url=url)
        assert call is not None
        assert call.headers(url) == ({CALL_ID_HEADER: call.call_id} if inside else {})
        call.finish("ok")


def test_without_a_policy_endpoint_no_header_is_added() -> None:
    with capture(), ls.rollout():
        call = start_call()
        assert call is not None
        assert call.headers(URL) == {}


@pytest.mark.parametrize(
    ("answered", "kept"),
    [
        ("ca_0123", "ca_0123"),
        ("x" * 128, "x" * 128),
        ("x" * 129, ""),
        ("req:7.a-b_c", "req:7.a-b_c"),
        ("ca_1\nx: y", ""),
        ("", ""),
        ("ca é", ""),
    ],
)
def test_the_id_that_the_endpoint_answers_is_kept_if_it_can_be_one(answered: str, kept: str) -> None:
    with capture() as cap, ls.rollout():
        call = start_call()
        assert call is not None
        call.answered(200, {"X-Lightning-Call-Id": answered})
        call.finish("ok")
        same = start_call()
        assert same is not None
        same.answered(200, {CALL_ID_HEADER: same.call_id})
        same.finish("ok")
    assert [record.call.endpoint_call_id for record in of_kind(cap.records, "call")] == [kept, ""]


def test_outside_any_rollout_a_call_is_counted_and_not_recorded() -> None:
    before = faults.counters().get("calls_outside_rollout", 0)
    assert start_call() is None
    assert faults.counters()["calls_outside_rollout"] == before + 1


def test_in_a_capture_it_is_kept_without_a_rollout() -> None:
    with capture() as cap:
        call_id = make_call()
    record = of_kind(cap.records, "call")[0]
    assert (record.call.call_id, record.rollout_id, record.call.agent) == (call_id, "", "")
    assert record.order > 0


def test_a_hook_that_fails_withholds_the_body_and_keeps_the_record() -> None:
    def hook(body: bytes) -> bytes:
        if b"bad" in body:
            raise LookupError("hook")
        return body.replace(b"Alice", b"NAME")

    ls.init(redact=hook)
    with ls.rollout():
        call = start_call()
        assert call is not None
        call.sent(b"hello Alice")
        call.received(b"bad Alice")
        call.finish("ok")
    runtime = active()
    assert runtime is not None
    written = of_kind(read_spool(runtime.config.home.spool), "call")[0].call
    assert (written.request, written.response, written.redactions) == (b"hello NAME", b"", 2)
    assert faults.counters()["error.redact_hook"] >= 1


def test_bodies_that_no_record_can_hold_are_withheld_and_the_call_says_so(tmp_path: Path) -> None:
    ls.init()
    with ls.rollout():
        for outcome in ("ok", "error"):
            call = start_call()
            assert call is not None
            call.sent(b"x" * 40_000_000)
            call.answered(200, {})
            call.received(b"y" * 30_000_000)
            call.finish("ok" if outcome == "ok" else "error", None if outcome == "ok" else OSError("why"))
        stream = start_call()
        assert stream is not None
        stream.sent(b"x")
        for _ in range(70):
            stream.event(b"z" * 1_000_000)
        stream.finish("ok")
        make_call()
    records = read_spool(tmp_path / "home" / "spool")
    calls = [record.call for record in of_kind(records, "call")]
    assert [len(call.request) for call in calls[:3]] == [0, 0, 0]
    assert [call.error.type for call in calls] == ["lightning_sdk.RecordTooLarge"] * 3 + [""]
    assert "70000000 bytes" in calls[0].error.message
    assert "(why)" in calls[1].error.message
    assert calls[3].request
    # Nothing of the rollout is missing.
    (leave,) = of_kind(records, "leave")
    assert leave.leave.count == len([r for r in records if r.record.rollout_id])
    assert of_kind(records, "counters")[-1].counters.values["bodies_withheld"] == 3
