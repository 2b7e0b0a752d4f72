"""Routing without code: the calls of the named agents go to the policy endpoint.

1. Whatever client the agent's code has, its calls reach the endpoint; other agents' do not.
2. The endpoint gets the body as it is, the headers of the contract, and nothing else of the user's.
3. What cannot be routed is refused in the agent's code, reaches nobody, and is recorded.
4. The SDK behaves as with any server: retries, errors, timeouts, streams.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import pytest

import lightning_sdk as ls
from lightning_integrations.openai import OpenAIIntegration
from lightning_sdk.client import faults
from lightning_sdk.client.runtime import active
from lightning_sdk.errors import RoutingError
from lightning_sdk.testing import Capture, capture
from support.client_records import of_kind, read_spool
from support.fake_openai import Exchange, FakeOpenAI, Reply
from support.memory_recorder import MemoryRecorder

ASK: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Is it raining?"}]}
# In everything that is the user's own; no byte of it may reach the endpoint, but in a body.
SECRET = "users-own-secret"
TOKEN = "token-of-the-endpoint"


@dataclass
class Setting:
    """The user's provider and the policy endpoint, both of which remember what comes over their sockets."""

    provider: FakeOpenAI
    endpoint: FakeOpenAI
    cap: Capture

    @property
    def requests(self) -> tuple[int, int]:
        return len(self.provider.exchanges), len(self.endpoint.exchanges)


@pytest.fixture
def setting() -> Iterator[Setting]:
    with FakeOpenAI() as provider, FakeOpenAI() as endpoint:
        ls.init(policy_endpoint=endpoint.base_url, policy_token=TOKEN, agents="writer|re*")
        with capture() as cap:
            yield Setting(provider, endpoint, cap)
    ls.shutdown()


@ls.trace_agent(name="writer")
def as_writer(do: Callable[[], Any]) -> Any:
    return do()


@ls.trace_agent(name="critic")
def as_critic(do: Callable[[], Any]) -> Any:
    return do()


def client_of(setting: Setting, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(**{"base_url": setting.provider.base_url, "api_key": SECRET, **options})


def headers_of(exchange: Exchange) -> dict[str, str]:
    return {name.lower(): value for name, value in exchange.headers.items()}


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


def plain(setting: Setting) -> Any:
    with client_of(setting) as client:
        return client.chat.completions.create(**ASK)


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


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_the_sdk_retries_at_the_endpoint(status: int) -> None:
    failing = Reply(status=status, headers={"retry-after-ms": "1"})
    with FakeOpenAI() as provider, FakeOpenAI([failing, failing]) as endpoint:
        ls.init(policy_endpoint=endpoint.base_url, policy_token=TOKEN, agents="*")
        with capture() as cap:
            as_writer(lambda: plain(Setting(provider, endpoint, cap)))
        ls.shutdown()

    assert (len(provider.exchanges), len(endpoint.exchanges)) == (0, 3)
    assert len({exchange.headers["x-lightning-call-id"] for exchange in endpoint.exchanges}) == 1
    assert (cap.calls[0].attempts, cap.calls[0].status, cap.calls[0].outcome) == (3, 200, "ok")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
def test_an_error_of_the_endpoint_is_the_sdks(status: int, error: type[Exception]) -> None:
    with FakeOpenAI(lambda request: Reply(status=status)) as endpoint:
        ls.init(policy_endpoint=endpoint.base_url, agents="*")
        with (
            capture() as cap,
            client_of(Setting(endpoint, endpoint, cap), max_retries=0) as client,
            pytest.raises(error, match=f"scripted {status}"),
        ):
            as_writer(lambda: client.chat.completions.create(**ASK))
        ls.shutdown()
    assert (cap.calls[0].outcome, cap.calls[0].status) == ("error", status)


def test_a_redirect_of_the_endpoint_is_not_followed() -> None:
    with FakeOpenAI() as elsewhere:
        moved = Reply(status=307, headers={"location": f"{elsewhere.base_url}/chat/completions"})
        with FakeOpenAI([moved, moved]) as endpoint:
            ls.init(policy_endpoint=endpoint.base_url, policy_token=TOKEN, agents="*")
            setting = Setting(elsewhere, endpoint, None)  # type: ignore[arg-type]
            with client_of(setting, http_client=httpx2.Client(follow_redirects=True)) as client:
                with pytest.raises(openai.APIStatusError):
                    as_writer(lambda: client.chat.completions.create(**ASK))
                with pytest.raises(openai.APIStatusError):
                    as_writer(
                        lambda: client.post(
                            "/chat/completions", cast_to=object, body=ASK, options={"follow_redirects": True}
                        )
                    )
            ls.shutdown()
    assert (len(elsewhere.exchanges), len(endpoint.exchanges)) == (0, 2)


def test_a_cookie_of_the_endpoint_is_not_sent_back() -> None:
    with FakeOpenAI([Reply(headers={"set-cookie": "a=b; Path=/"})]) as endpoint:
        ls.init(policy_endpoint=endpoint.base_url, agents="*")
        with client_of(Setting(endpoint, endpoint, None)) as client:  # type: ignore[arg-type]
            for _ in range(2):
                as_writer(lambda: client.chat.completions.create(**ASK))
        ls.shutdown()
    assert "cookie" not in headers_of(endpoint.exchanges[1])


def test_a_dead_endpoint_and_a_slow_one_are_the_sdks_errors() -> None:
    with FakeOpenAI() as gone:
        pass
    with FakeOpenAI([Reply(hold=True)]) as slow:
        for url, error in (
            (gone.base_url, openai.APIConnectionError),
            (slow.base_url, openai.APITimeoutError),
        ):
            ls.init(policy_endpoint=url, agents="*")
            with openai.OpenAI(api_key=SECRET, max_retries=0, timeout=0.3) as client, pytest.raises(error):
                as_writer(lambda: client.chat.completions.create(**ASK))
            ls.shutdown()


def test_the_token_is_in_no_record_no_log_and_no_repr(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        FakeOpenAI([Reply(status=500, headers={"retry-after-ms": "1"})]) as endpoint,
        caplog.at_level("DEBUG"),
    ):
        ls.init(policy_endpoint=endpoint.base_url, policy_token=TOKEN, agents="*")
        as_writer(lambda: plain(Setting(endpoint, endpoint, None)))  # type: ignore[arg-type]
        runtime = active()
        with ls.rollout():
            shown = [repr(runtime.config), repr(runtime.routing), repr(vars(runtime))]
        ls.shutdown()

    assert len(endpoint.exchanges) == 2
    records = read_spool(runtime.config.home.spool)
    assert len(of_kind(records, "call")) == 1
    shown += [caplog.text, *capsys.readouterr(), *(str(sourced.record) for sourced in records)]
    assert TOKEN not in "".join(shown)


def test_the_agent_sees_the_request_that_its_code_made(setting: Setting) -> None:
    with client_of(setting) as client:
        raw = as_writer(lambda: client.chat.completions.with_raw_response.create(**ASK))
        chunks = as_writer(lambda: client.chat.completions.create(**ASK, stream=True))
        list(chunks)

    for request in (raw.http_request, chunks.response.request):
        assert str(request.url) == f"{setting.provider.base_url}/chat/completions"
        assert request.headers["authorization"] == f"Bearer {SECRET}"
        assert not [name for name in request.headers if name.startswith("x-lightning")]


def test_one_client_serves_routed_and_unrouted_agents_from_many_threads(setting: Setting) -> None:
    barrier = threading.Barrier(8)
    with client_of(setting) as client:

        def work(agent: Callable[[Callable[[], Any]], Any]) -> None:
            barrier.wait()
            for _ in range(5):
                agent(lambda: client.chat.completions.create(**ASK))

        threads = [threading.Thread(target=work, args=(agent,)) for agent in [as_writer, as_critic] * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert setting.requests == (20, 20)
    for server, token in ((setting.provider, SECRET), (setting.endpoint, TOKEN)):
        assert {headers_of(exchange)["authorization"] for exchange in server.exchanges} == {f"Bearer {token}"}


def test_one_async_client_serves_one_event_loop_after_the_other(setting: Setting) -> None:
    def ask_in_three_loops() -> None:
        client = openai.AsyncOpenAI(base_url=setting.provider.base_url, api_key=SECRET)

        async def ask() -> None:
            await client.chat.completions.create(**ASK)

        for _ in range(3):
            as_writer(lambda: asyncio.run(ask()))

    with warnings.catch_warnings():
        # Nobody closes the client, and so neither its connections.
        warnings.simplefilter("ignore", ResourceWarning)
        ask_in_three_loops()
        # First the client, then what stood beside it.
        gc.collect()
        gc.collect()
    assert setting.requests == (0, 3)


def test_connections_are_kept_and_closed_with_the_agents_client(setting: Setting) -> None:
    with client_of(setting) as client:
        for _ in range(2):
            as_writer(lambda: client.chat.completions.create(**ASK))
    with pytest.raises(RuntimeError, match="has been closed"):
        as_writer(lambda: client.chat.completions.create(**ASK))
    assert setting.requests == (0, 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_writer(lambda: client_of(setting).chat.completions.create(**ASK))
        gc.collect()


def test_a_forked_child_routes_over_connections_of_its_own(setting: Setting) -> None:
    with client_of(setting) as client:
        as_writer(lambda: client.chat.completions.create(**ASK))
        child = os.fork()
        if child == 0:
            try:
                as_writer(lambda: client.chat.completions.create(**ASK))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        as_writer(lambda: client.chat.completions.create(**ASK))
    assert setting.requests == (0, 3)


def test_undo_takes_routing_off_and_leaves_the_clients_whole(setting: Setting) -> None:
    client = openai.OpenAI(base_url=setting.provider.base_url, api_key=SECRET)
    own = client._client
    undo = OpenAIIntegration().install(MemoryRecorder())
    assert client._client is own
    undo()
    ls.shutdown()
    assert client._client is own
    client.close()
    assert own.is_closed
