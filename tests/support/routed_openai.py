"""A user's provider, a policy endpoint, and agents of which one is routed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai

import lightning_sdk as ls
from lightning_sdk.testing import Capture, capture
from support.fake_openai import Exchange, FakeOpenAI

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


@contextmanager
def routed() -> Iterator[Setting]:
    """Calls of the agents `writer` and `re…` go to the endpoint, and are captured."""
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


def plain(setting: Setting) -> Any:
    with client_of(setting) as client:
        return client.chat.completions.create(**ASK)
