"""The endpoint as the `openai` package sees it, over a real socket; the engine says what the test scripts."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from support.policy_fakes import END, ByteTokenizer, scripted_policies, served
from support.waiting import wait_until

USER: Any = {"role": "user", "content": "64+16?"}
TOOL: Any = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}
CALL_TEXT = '<tool_call>{"name": "calculator", "arguments": {"expression": "64+16"}}</tool_call>'


def _client(url: str, **options: Any) -> OpenAI:
    return OpenAI(
        base_url=url, api_key=options.pop("api_key", "unused"), max_retries=0, timeout=20, **options
    )


def test_an_answer_has_content_usage_and_a_finish_reason() -> None:
    policies, engine, _ = scripted_policies("The answer is 80.")
    with served(policies) as url:
        answer = _client(url).chat.completions.create(model="scripted", messages=[USER])
    assert answer.choices[0].message.content == "The answer is 80."
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("The answer is 80.") + 1
    assert answer.usage.prompt_tokens == len(ByteTokenizer().encode(engine.prompts[0]))
    assert answer.model == "scripted"


def test_what_the_request_leaves_out_is_decided_and_what_it_says_is_kept() -> None:
    policies, engine, _ = scripted_policies("a", "b")
    with served(policies) as url:
        create = _client(url).chat.completions.create
        create(model="scripted", messages=[USER])
        create(
            model="scripted",
            messages=[USER],
            temperature=0.25,
            top_p=0.5,
            seed=7,
            stop=["x", "y"],
            max_completion_tokens=9,
        )
    left_out, said = engine.params
    prompt = len(ByteTokenizer().encode(engine.prompts[0]))
    assert (left_out.temperature, left_out.top_p, left_out.stop) == (1.0, 1.0, ())
    assert left_out.max_tokens == engine.context_length - prompt
    assert 0 <= left_out.seed < 2**53  # a number that every reader of JSON keeps
    assert (said.temperature, said.top_p, said.seed, said.stop, said.max_tokens) == (
        0.25,
        0.5,
        7,
        ("x", "y"),
        9,
    )


def test_a_stop_string_ends_the_text_before_it() -> None:
    policies, _, _ = scripted_policies("one. two. three.")
    with served(policies) as url:
        answer = _client(url).chat.completions.create(model="scripted", messages=[USER], stop=". tw")
    assert answer.choices[0].message.content == "one"
    assert answer.choices[0].finish_reason == "stop"


def test_max_tokens_cuts_with_finish_reason_length() -> None:
    policies, _, _ = scripted_policies("abcdef")
    with served(policies) as url:
        answer = _client(url).chat.completions.create(model="scripted", messages=[USER], max_tokens=3)
    assert answer.choices[0].message.content == "abc"
    assert answer.choices[0].finish_reason == "length"


def test_a_tool_call_becomes_tool_calls_with_its_arguments_to_the_letter() -> None:
    policies, engine, _ = scripted_policies(CALL_TEXT, "80")
    with served(policies) as url:
        client = _client(url)
        first = client.chat.completions.create(model="scripted", messages=[USER], tools=[TOOL])
        choice = first.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert choice.message.tool_calls is not None
        call: Any = choice.message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == ("calculator", '{"expression": "64+16"}')
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "80"}
        said: Any = choice.message.model_dump()
        client.chat.completions.create(model="scripted", messages=[USER, said, result], tools=[TOOL])
    assert f"{CALL_TEXT}<|im_end|>\n<|im_start|>user\n<result>80</result>" in engine.prompts[1]
    assert engine.prompts[1].startswith(engine.prompts[0] + CALL_TEXT)


def test_what_is_no_call_or_may_not_be_one_is_content() -> None:
    broken = CALL_TEXT.replace("}}", "}")
    policies, _, _ = scripted_policies(broken, CALL_TEXT, CALL_TEXT)
    with served(policies) as url:
        create = _client(url).chat.completions.create
        answers = [
            create(model="scripted", messages=[USER], tools=[TOOL]),
            create(model="scripted", messages=[USER], tools=[TOOL], tool_choice="none"),
            create(model="scripted", messages=[USER]),
        ]
    for answer, text in zip(answers, (broken, CALL_TEXT, CALL_TEXT), strict=True):
        assert answer.choices[0].message.content == text
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "script", ["Grüße €", f"I see < and <tool. {CALL_TEXT}\n{CALL_TEXT}", "<tool_call>{}"]
)
def test_a_stream_says_what_the_whole_answer_says(script: str) -> None:
    policies, _, _ = scripted_policies(script, script)
    asked: Any = {"model": "scripted", "messages": [USER], "tools": [TOOL], "n": 2, "stop": "zz"}
    with served(policies) as url:
        client = _client(url)
        whole = client.chat.completions.create(**asked)
        with client.chat.completions.stream(**{**asked}) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion()
    for one, other in zip(whole.choices, streamed.choices, strict=True):
        assert (one.message.content or "") == (other.message.content or "")
        assert one.finish_reason == other.finish_reason
        calls: list[Any] = [choice.message.tool_calls or [] for choice in (one, other)]
        assert [c.function.arguments for c in calls[0]] == [c.function.arguments for c in calls[1]]


def test_token_ids_come_as_vllm_sends_them() -> None:
    policies, engine, _ = scripted_policies("ab", "ab")
    asked: Any = {"model": "scripted", "messages": [USER], "extra_body": {"return_token_ids": True}}
    with served(policies) as url:
        client = _client(url)
        whole: Any = client.chat.completions.create(**asked)
        chunks: list[Any] = list(client.chat.completions.create(**asked, stream=True))
    prompt = ByteTokenizer().encode(engine.prompts[0])
    assert whole.prompt_token_ids == prompt
    assert whole.choices[0].token_ids == [97, 98, END]
    assert chunks[0].prompt_token_ids == prompt
    assert [token for chunk in chunks[1:] for token in chunk.choices[0].token_ids] == [97, 98, END]
    assert all(getattr(chunk, "prompt_token_ids", None) is None for chunk in chunks[1:])


def test_log_probabilities_come_for_every_sampled_token() -> None:
    policies, _, _ = scripted_policies("ab", "ab")
    asked: Any = {"model": "scripted", "messages": [USER], "logprobs": True, "top_logprobs": 2}
    with served(policies) as url:
        client = _client(url)
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))
    assert whole.choices[0].logprobs is not None
    entries = whole.choices[0].logprobs.content or []
    assert [(entry.token, entry.logprob) for entry in entries] == [
        ("a", -0.5),
        ("b", -1.5),
        ("<|im_end|>", -2.5),
    ]
    assert [other.token for other in entries[0].top_logprobs] == ["a", "<|im_end|>"]
    assert entries[0].bytes == [97]
    streamed = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == entries


def test_usage_comes_in_a_last_chunk_where_it_is_asked_for() -> None:
    policies, _, _ = scripted_policies("ab", "ab")
    with served(policies) as url:
        create = _client(url).chat.completions.create
        asked = list(
            create(model="scripted", messages=[USER], stream=True, stream_options={"include_usage": True})
        )
        unasked = list(create(model="scripted", messages=[USER], stream=True))
    assert asked[-1].choices == []
    assert asked[-1].usage is not None
    assert asked[-1].usage.completion_tokens == 3
    assert all(chunk.usage is None for chunk in [*asked[:-1], *unasked])
    assert unasked[-1].choices[0].finish_reason == "stop"


async def test_the_async_client_gets_the_same() -> None:
    policies, _, _ = scripted_policies("hello", "hello")
    with served(policies) as url:
        async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
            whole = await client.chat.completions.create(model="scripted", messages=[USER])
            stream = await client.chat.completions.create(model="scripted", messages=[USER], stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert whole.choices[0].message.content == text == "hello"


def test_errors_are_those_of_the_openai_package() -> None:
    policies, _, _ = scripted_policies()
    with served(policies) as url:
        create = _client(url).chat.completions.create
        with pytest.raises(openai.NotFoundError) as unknown:
            create(model="gpt-9", messages=[USER])
        with pytest.raises(openai.BadRequestError) as unsupported:
            create(model="scripted", messages=[USER], logit_bias={"1": 2})
        with pytest.raises(openai.BadRequestError) as long:
            create(model="scripted", messages=[{"role": "user", "content": "x" * 5000}])
        with pytest.raises(openai.BadRequestError) as greedy:
            create(model="scripted", messages=[USER], max_tokens=4096)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert (unsupported.value.type, unsupported.value.param) == ("invalid_request_error", "logit_bias")
    assert long.value.code == greedy.value.code == "context_length_exceeded"
    assert "4096" in long.value.message


class _CountingTokenizer(ByteTokenizer):
    encoded = 0

    def encode(self, text: str) -> list[int]:
        self.encoded += len(text)
        return super().encode(text)


def test_a_prompt_that_cannot_fit_is_refused_without_tokenising_it() -> None:
    tokenizer = _CountingTokenizer()
    policies, engine, _ = scripted_policies(tokenizer=tokenizer)
    with served(policies) as url:
        create = _client(url).chat.completions.create
        with pytest.raises(openai.BadRequestError) as refused:
            create(model="scripted", messages=[{"role": "user", "content": "x" * 5_000_000}], max_tokens=2)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    assert "at least 4166" in refused.value.message
    assert (tokenizer.encoded, engine.prompts) == (0, [])


class _HeldTokenizer(ByteTokenizer):
    """Renders a conversation that says "hold" only once it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.holds, self.go_on = threading.Event(), threading.Event()

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        if messages[-1]["content"] == "hold":
            self.holds.set()
            assert self.go_on.wait(20)
        return super().render(messages, tools)


def test_a_prompt_that_takes_long_to_read_stops_no_answer_that_runs() -> None:
    tokenizer = _HeldTokenizer()
    policies, _, _ = scripted_policies("a long answer", "late", tokenizer=tokenizer)
    with served(policies) as url, ThreadPoolExecutor(1) as other:
        create = _client(url).chat.completions.create
        stream = create(model="scripted", messages=[USER], stream=True)
        next(stream)
        late = other.submit(create, model="scripted", messages=[{"role": "user", "content": "hold"}])
        try:
            assert tokenizer.holds.wait(20)
            said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        finally:
            tokenizer.go_on.set()
        assert late.result(20).choices[0].message.content == "late"
    assert said == "a long answer"


def test_a_full_queue_is_a_429_also_for_a_stream() -> None:
    policies, engine, writer = scripted_policies()
    engine.full = True
    with served(policies) as url:
        create = _client(url).chat.completions.create
        with pytest.raises(openai.RateLimitError) as caught:
            create(model="scripted", messages=[USER])
        with pytest.raises(openai.RateLimitError):
            create(model="scripted", messages=[USER], stream=True)
    assert caught.value.code == "queue_full"
    assert writer.records == []


def test_an_engine_that_fails_is_a_500_that_tells_no_content() -> None:
    policies, engine, _ = scripted_policies("ab")
    engine.failure = RuntimeError("the prompt was: my secret")
    with served(policies) as url, pytest.raises(openai.InternalServerError) as caught:
        _client(url).chat.completions.create(model="scripted", messages=[USER])
    assert "RuntimeError" in caught.value.message
    assert "secret" not in str(caught.value.body)


def test_an_engine_that_fails_in_a_stream_is_an_error_there() -> None:
    policies, engine, _ = scripted_policies("ab")
    engine.failure = RuntimeError("no")
    with served(policies) as url:
        stream = _client(url).chat.completions.create(model="scripted", messages=[USER], stream=True)
        with pytest.raises(openai.APIError, match="the engine failed"):
            list(stream)


def test_a_token_guards_every_route_but_health() -> None:
    policies, _, _ = scripted_policies("ok")
    with served(policies, token="sesame") as url:
        for call in (
            lambda client: client.models.list(),
            lambda client: client.chat.completions.create(model="scripted", messages=[USER]),
        ):
            with pytest.raises(openai.AuthenticationError) as caught:
                call(_client(url, api_key="wrong"))
            assert caught.value.code == "invalid_api_key"
        client = _client(url, api_key="sesame")
        answer = client.chat.completions.create(model="scripted", messages=[USER])
        assert answer.choices[0].message.content == "ok"
        assert _request(url, "GET", "/health")[0] == 200


def test_models_lists_the_one_that_is_served() -> None:
    policies, _, _ = scripted_policies()
    with served(policies) as url:
        client = _client(url)
        assert [model.id for model in client.models.list()] == ["scripted"]
        assert client.models.retrieve("scripted").id == "scripted"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("POST", "/v1/chat/completions", {"content-type": "application/json"}, b"{", 400),
        ("POST", "/v1/chat/completions", {"content-type": "text/plain"}, b"{}", 400),
        ("GET", "/v1/chat/completions", {}, b"", 405),
        ("POST", "/v1/nothing", {}, b"", 404),
    ],
)
def test_every_refusal_has_an_openai_style_body(
    method: str, path: str, headers: dict[str, str], body: bytes, status: int
) -> None:
    policies, _, _ = scripted_policies()
    with served(policies) as url:
        got, _, answer = _request(url, method, path, headers, body)
    assert got == status
    assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_frees_its_place_and_what_it_got_is_recorded(stream: bool) -> None:
    policies, engine, writer = scripted_policies("abcdef")
    engine.gate = asyncio.Semaphore(2)  # two tokens, then silence
    with served(policies) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        body = json.dumps({"model": "scripted", "messages": [USER], "stream": stream})
        headers = {"content-type": "application/json", "x-lightning-call-id": "ca_gone"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        wait_until(lambda: engine.load.running == 1 and engine.gate is not None and engine.gate.locked())
        connection.close()
        wait_until(lambda: engine.load.running == 0)
        wait_until(lambda: len(writer.records) == 1)
    tokens = writer.records[0].tokens
    assert tokens.call_id == "ca_gone"
    assert [choice.finish_reason for choice in tokens.choices] == ["abort"]
    assert len(tokens.choices[0].token_ids) == 2 * 4


def _request(
    url: str, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()
