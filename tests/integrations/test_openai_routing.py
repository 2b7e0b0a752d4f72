"""Routing without code: the calls of the named agents go to the policy endpoint.

1. Whatever client the agent's code has, its calls reach the endpoint; other agents' do not.
2. The endpoint gets the body as it is, the headers of the contract, and nothing else of the user's.
3. What cannot be routed is refused in the agent's code, reaches nobody, and is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults
from lightning_sdk.errors import RoutingError
from lightning_sdk.testing import capture
from support.fake_openai import FakeOpenAI
from support.routed_openai import (
    ASK,
    SECRET,
    TOKEN,
    Setting,
    as_critic,
    as_writer,
    client_of,
    headers_of,
    plain,
    routed,
)


@pytest.fixture
def setting() -> Iterator[Setting]:
    with routed() as setting:
        yield setting


class AddsSecret(httpx2.Auth):
    def auth_flow(self, request: httpx2.Request) -> Any:
        request.headers["x-from-auth"] = SECRET
        yield request


class SecretTransport(httpx2.HTTPTransport):
    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["x-from-transport"] = SECRET
        return super().handle_request(request)


def add_secret(request: httpx2.Request) -> None:
    request.headers["x-from-hook"] = SECRET


async def add_secret_async(request: httpx2.Request) -> None:
    request.headers["x-from-hook"] = SECRET


def http_client_with_secrets() -> httpx2.Client:
    return httpx2.Client(
        auth=AddsSecret(),
        headers={"x-client": SECRET},
        cookies={"session": SECRET},
        params={"key": SECRET},
        event_hooks={"request": [add_secret]},
        transport=SecretTransport(),
        follow_redirects=True,
    )


class SigningOpenAI(openai.OpenAI):
    """A client class of the user's, which signs what it sends at the last moment."""

    def _prepare_request(self, request: httpx2.Request) -> None:
        request.headers["x-signature"] = SECRET


def everything_of_the_users(setting: Setting) -> Any:
    with SigningOpenAI(
        base_url=f"{setting.provider.base_url}/{SECRET}",
        api_key=lambda: SECRET,
        organization=SECRET,
        project=SECRET,
        default_headers={
            "x-default": SECRET,
            "user-agent": SECRET,
            "accept": SECRET,
            "cookie": f"a={SECRET}",
        },
        default_query={"default": SECRET},
        http_client=http_client_with_secrets(),
    ) as client:
        return client.chat.completions.create(
            **ASK,
            extra_headers={
                "x-api-key": SECRET,
                "api-key": SECRET,
                "content-type": f"application/json; {SECRET}",
            },
            extra_query={"extra": SECRET},
        )


def with_other_options(setting: Setting) -> Any:
    with client_of(setting) as client:
        return client.with_options(api_key=SECRET, max_retries=0).chat.completions.create(**ASK)


def azure(setting: Setting) -> Any:
    with openai.AzureOpenAI(
        azure_endpoint=setting.provider.origin, api_key=SECRET, api_version=SECRET
    ) as client:
        return client.chat.completions.create(**ASK)


def azure_deployment(setting: Setting) -> Any:
    with openai.AzureOpenAI(
        azure_endpoint=setting.provider.origin,
        azure_deployment="mine",
        azure_ad_token_provider=lambda: SECRET,
        api_version="2024-06-01",
    ) as client:
        return client.chat.completions.create(**ASK)


def whole_url(setting: Setting) -> Any:
    with client_of(setting) as client:
        url = f"{setting.provider.base_url}/chat/completions?key={SECRET}"
        answer = client.post(url, cast_to=object, body=ASK)
        return openai.types.chat.ChatCompletion.model_validate(answer)


def raw_response(setting: Setting) -> Any:
    with client_of(setting) as client:
        return client.chat.completions.with_raw_response.create(**ASK).parse()


def stream(setting: Setting) -> Any:
    with client_of(setting) as client, client.chat.completions.stream(**ASK) as events:
        return events.get_final_completion()


def asynchronous(setting: Setting) -> Any:
    async def ask() -> Any:
        http_client = httpx2.AsyncClient(
            auth=AddsSecret(), cookies={"session": SECRET}, event_hooks={"request": [add_secret_async]}
        )
        async with openai.AsyncOpenAI(
            base_url=setting.provider.base_url, api_key=SECRET, http_client=http_client
        ) as client:
            return await client.chat.completions.create(**ASK)

    return asyncio.run(ask())


def asynchronous_stream(setting: Setting) -> Any:
    async def ask() -> Any:
        async with (
            openai.AsyncAzureOpenAI(
                azure_endpoint=setting.provider.origin, api_key=SECRET, api_version="2024-06-01"
            ) as client,
            client.chat.completions.stream(**ASK) as events,
        ):
            return await events.get_final_completion()

    return asyncio.run(ask())


CLIENTS = [
    plain,
    everything_of_the_users,
    with_other_options,
    azure,
    azure_deployment,
    whole_url,
    raw_response,
    stream,
    asynchronous,
    asynchronous_stream,
]


@pytest.mark.parametrize("ask", CLIENTS, ids=[ask.__name__ for ask in CLIENTS])
def test_the_endpoint_gets_the_body_the_headers_of_the_contract_and_nothing_else(
    setting: Setting, ask: Callable[[Setting], Any]
) -> None:
    answer = as_writer(lambda: ask(setting))

    assert answer.choices[0].message.content == "Hello there"
    assert setting.requests == (0, 1)
    exchange, call = setting.endpoint.exchanges[0], setting.cap.calls[0]
    assert (exchange.method, exchange.path) == ("POST", "/v1/chat/completions")
    assert exchange.json["messages"] == ASK["messages"]
    streamed = bool(exchange.json.get("stream"))
    assert headers_of(exchange) == {
        "host": setting.endpoint.origin.removeprefix("http://"),
        "content-length": str(len(exchange.request)),
        "content-type": "application/json",
        "accept": "text/event-stream" if streamed else "application/json",
        "user-agent": "lightning_sdk (openai)",
        "authorization": f"Bearer {TOKEN}",
        "x-lightning-call-id": call.call_id,
        "x-lightning-rollout": call.rollout_id,
        "x-lightning-agent": "writer",
    }
    assert SECRET not in repr(exchange)
    assert (call.url, call.request_bytes) == (
        f"{setting.endpoint.base_url}/chat/completions",
        exchange.request,
    )
    assert (call.agent, call.outcome, call.attempts, call.streamed) == ("writer", "ok", 1, streamed)


def test_other_agents_and_code_outside_any_rollout_keep_their_model(setting: Setting) -> None:
    @ls.trace_agent(name="reviser")
    def nested() -> None:
        plain(setting)
        as_critic(lambda: plain(setting))
        plain(setting)

    as_critic(lambda: plain(setting))
    assert setting.requests == (1, 0)
    nested()
    assert setting.requests == (2, 2)
    plain(setting)
    assert setting.requests == (3, 2)
    authorizations = {headers_of(exchange)["authorization"] for exchange in setting.provider.exchanges}
    assert authorizations == {f"Bearer {SECRET}"}
    assert TOKEN not in repr(setting.provider.exchanges)
    assert all("x-lightning" not in repr(exchange.headers).lower() for exchange in setting.provider.exchanges)


def test_a_mapping_names_policies_and_the_first_pattern_counts() -> None:
    with FakeOpenAI() as endpoint:
        ls.init(
            policy_endpoint=endpoint.base_url,
            agents={"writer": "small", "w*|critic": "large", "*": None},
            split="train",
        )
        for name in ("writer", "worker", "critic", "größe %"):
            ls.trace_agent(name=name)(plain)(Setting(endpoint, endpoint, None))  # type: ignore[arg-type]
        with ls.rollout():
            plain(Setting(endpoint, endpoint, None))  # type: ignore[arg-type]
        ls.shutdown()

    headers = [headers_of(exchange) for exchange in endpoint.exchanges]
    assert [each.get("x-lightning-policy") for each in headers] == ["small", "large", "large", None, None]
    agents = ["writer", "worker", "critic", "gr%C3%B6%C3%9Fe%20%25", ""]
    assert [each.get("x-lightning-agent") for each in headers] == agents
    assert {each.get("x-lightning-split") for each in headers} == {"train"}
    # Without a token none is sent, neither ours nor the user's.
    assert {each.get("authorization") for each in headers} == {None}


def test_the_variables_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI() as provider, FakeOpenAI() as endpoint:
        monkeypatch.setenv("LIGHTNING_POLICY_ENDPOINT", endpoint.base_url)
        monkeypatch.setenv("LIGHTNING_POLICY_TOKEN", TOKEN)
        monkeypatch.setenv("LIGHTNING_AGENTS", '{"writer": "small"}')
        as_writer(lambda: plain(Setting(provider, endpoint, None)))  # type: ignore[arg-type]
        ls.shutdown()

    (exchange,) = endpoint.exchanges
    assert provider.exchanges == []
    assert exchange.headers["x-lightning-policy"] == "small"
    assert exchange.headers["authorization"] == f"Bearer {TOKEN}"


def test_a_capture_routes_nothing_that_only_the_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI() as provider, FakeOpenAI() as endpoint:
        monkeypatch.setenv("LIGHTNING_POLICY_ENDPOINT", endpoint.base_url)
        monkeypatch.setenv("LIGHTNING_AGENTS", "*")
        setting = Setting(provider, endpoint, None)  # type: ignore[arg-type]
        with capture():
            as_writer(lambda: plain(setting))
            assert setting.requests == (1, 0)
            ls.init()
            as_writer(lambda: plain(setting))
            assert setting.requests == (1, 1)
        ls.shutdown()


def send_a_form(client: openai.OpenAI) -> Any:
    return client.post(
        "/chat/completions",
        cast_to=object,
        body={"model": "m"},
        files={"file": b"x"},
        options={"headers": {"content-type": "multipart/form-data"}},
    )


def send_an_iterator(client: openai.OpenAI) -> Any:
    return client.post("/chat/completions", cast_to=object, content=iter([b"{}"]))


REFUSED: list[tuple[Callable[[openai.OpenAI], Any], str, str]] = [
    (
        lambda client: client.embeddings.create(model="m", input="words"),
        "embeddings",
        "answers no such request",
    ),
    (lambda client: client.moderations.create(input="x"), "moderations", "answers no such request"),
    (
        lambda client: client.post("/threads/t/runs", cast_to=object),
        "threads.t.runs",
        "answers no such request",
    ),
    (send_a_form, "chat.completions", "an iterator or a form"),
    (send_an_iterator, "chat.completions", "an iterator or a form"),
]


@pytest.mark.parametrize(("ask", "api", "why"), REFUSED)
def test_what_cannot_be_routed_is_refused_reaches_nobody_and_is_recorded(
    setting: Setting, ask: Callable[[openai.OpenAI], Any], api: str, why: str
) -> None:
    with client_of(setting) as client, pytest.raises(RoutingError, match=why) as caught:
        as_writer(lambda: ask(client))

    assert setting.requests == (0, 0)
    (call,) = setting.cap.calls
    assert (call.api, call.url, call.agent, call.outcome) == (api, "", "writer", "error")
    assert call.error is not None
    assert call.error.startswith("lightning_sdk.errors.RoutingError: ")
    assert "routed agent 'writer'" in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_it_is_refused_in_async_code_too(setting: Setting) -> None:
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=setting.provider.base_url, api_key=SECRET) as client:
            await client.embeddings.create(model="m", input="words")

    with pytest.raises(RoutingError):
        as_writer(lambda: asyncio.run(ask()))
    assert setting.requests == (0, 0)


def test_a_websocket_is_refused_in_sync_and_async_code(setting: Setting) -> None:
    pytest.importorskip("websockets")

    async def connect() -> None:
        client = openai.AsyncOpenAI(base_url=setting.provider.base_url, api_key=SECRET)
        async with client, client.realtime.connect(model="m"):
            pass

    with client_of(setting) as client:
        with pytest.raises(RoutingError, match="a websocket of the routed agent 'writer'"):
            as_writer(client.realtime.connect(model="m").enter)
        with pytest.raises(RoutingError, match="a websocket"):
            as_writer(lambda: asyncio.run(connect()))
        # Others reach their provider, which here speaks no websocket.
        with pytest.raises(Exception, match="404"):
            as_critic(client.realtime.connect(model="m").enter)
    assert setting.endpoint.exchanges == []
    assert [(call.api, call.outcome, call.agent) for call in setting.cap.calls] == [
        ("websocket", "error", "writer")
    ] * 2


def test_an_http_client_of_no_known_library_is_refused(setting: Setting) -> None:
    class Own:
        timeout = 1.0

    with client_of(setting) as client:
        client._client = Own()  # type: ignore[assignment]
        with pytest.raises(RoutingError, match=r"HTTP client .*Own"):
            as_writer(lambda: client.chat.completions.create(**ASK))
        client._client = httpx2.Client()
    assert setting.requests == (0, 0)


def test_requests_that_are_no_calls_go_where_they_went(setting: Setting) -> None:
    with client_of(setting) as client:
        as_writer(client.chat.completions.list)
    assert setting.requests == (1, 0)


def test_an_error_of_ours_while_routing_never_lets_a_call_through(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIGHTNING_STRICT")

    def broken(*args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("lightning_sdk.client.routing.fnmatchcase", broken)
    with pytest.raises(RoutingError, match="cannot be told"):
        as_writer(lambda: plain(setting))
    assert setting.requests == (0, 0)
    assert faults.counters()["error.route"] == 1
