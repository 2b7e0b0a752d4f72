"""Routed calls: the SDK behaves as with any server, and connections live as long as the agent's client.

1. Retries, errors, timeouts, redirects and cookies of the endpoint.
2. What the agent sees of the request is what its code made; the token is nowhere.
3. Threads, event loops, forks and undo.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest

import lightning_sdk as ls
from lightning_integrations.openai import OpenAIIntegration
from lightning_sdk.client.runtime import active
from lightning_sdk.testing import capture
from support.client_records import of_kind, read_spool
from support.fake_openai import FakeOpenAI, Reply
from support.memory_recorder import MemoryRecorder
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
