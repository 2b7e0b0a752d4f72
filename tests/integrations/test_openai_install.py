"""Putting the patches on the OpenAI SDK and taking them off again.

1. Installed twice is installed once; after the last undo every attribute is the original.
2. Others may patch the same methods before, in between and after: one record a call, and theirs stay.
3. A version without what is needed is refused before anything was changed.
4. An error of ours never reaches the agent, and the call is still recorded with an end.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai._base_client import AsyncAPIClient, BaseClient, SyncAPIClient

from lightning_integrations.openai import OpenAIIntegration
from lightning_sdk.client import faults
from lightning_sdk.errors import PluginError
from lightning_sdk.plugins import INTEGRATIONS, Integration, find
from support.fake_openai import FakeOpenAI
from support.memory_recorder import MemoryCall, MemoryRecorder

ASK: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "Is it raining?"}]}


def attributes() -> dict[tuple[str, str], int]:
    """The identity of every attribute of the client classes: a wrapper says it equals what it wraps."""
    classes: tuple[type, ...] = (SyncAPIClient, AsyncAPIClient, BaseClient, openai.Stream, openai.AsyncStream)
    return {(owner.__name__, name): id(value) for owner in classes for name, value in vars(owner).items()}


def ask_once() -> str | None:
    with FakeOpenAI() as server, openai.OpenAI(base_url=server.base_url, api_key="test") as client:
        return client.chat.completions.create(**ASK).choices[0].message.content


class Other:
    """Another library that wraps `request`, and restores what it found."""

    def __init__(self) -> None:
        self.calls = 0
        self._found: Callable[..., Any] = SyncAPIClient.__dict__["request"]

        @functools.wraps(self._found)
        def request(client: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return self._found.__get__(client, type(client))(*args, **kwargs)

        SyncAPIClient.request = request  # type: ignore[method-assign]

    def restore(self) -> None:
        SyncAPIClient.request = self._found  # type: ignore[method-assign]


def test_it_is_found_by_its_entry_point() -> None:
    integration = find(INTEGRATIONS, "openai").load()()

    assert isinstance(integration, Integration)
    assert (integration.name, integration.target, integration.distribution) == ("openai", "openai", "openai")


def test_undo_puts_every_attribute_back() -> None:
    before = attributes()
    undo = OpenAIIntegration().install(MemoryRecorder())
    assert attributes() != before
    undo()

    assert attributes() == before


def test_undo_may_be_called_twice(recorder: MemoryRecorder) -> None:
    undo = OpenAIIntegration().install(MemoryRecorder())
    undo()
    undo()

    ask_once()
    assert recorder.call.outcome == "ok"


def test_installed_twice_records_once_to_the_latest_recorder() -> None:
    before = attributes()
    first, second = MemoryRecorder(), MemoryRecorder()
    undo_first, undo_second = (OpenAIIntegration().install(memory) for memory in (first, second))
    ask_once()
    assert (len(first.calls), len(second.calls)) == (0, 1)

    undo_second()
    ask_once()
    assert (len(first.calls), len(second.calls)) == (1, 1)

    undo_first()
    ask_once()
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert attributes() == before


def test_a_library_that_patched_before_us_is_left_in_place() -> None:
    before = attributes()
    other = Other()
    memory = MemoryRecorder()
    undo = OpenAIIntegration().install(memory)
    ask_once()
    undo()
    ask_once()

    assert (len(memory.calls), other.calls) == (1, 2)
    other.restore()
    assert attributes() == before


def test_a_library_that_patched_after_us_and_left_before_us_changes_nothing() -> None:
    before = attributes()
    memory = MemoryRecorder()
    undo = OpenAIIntegration().install(memory)
    other = Other()
    ask_once()
    other.restore()
    undo()

    assert (len(memory.calls), other.calls) == (1, 1)
    assert attributes() == before


def test_a_library_that_patched_after_us_survives_our_undo_and_our_return() -> None:
    before = attributes()
    memory = MemoryRecorder()
    undo = OpenAIIntegration().install(memory)
    other = Other()
    undo()
    ask_once()
    assert (len(memory.calls), other.calls) == (0, 1)

    undo = OpenAIIntegration().install(memory)
    ask_once()
    undo()
    assert (len(memory.calls), other.calls) == (1, 2)

    # It puts back the wrapper of ours that it found, which is off; the next installation clears that away.
    other.restore()
    ask_once()
    assert len(memory.calls) == 1
    OpenAIIntegration().install(memory)()
    assert attributes() == before


@pytest.mark.parametrize(
    ("owner", "name"),
    [(BaseClient, "_build_request"), (AsyncAPIClient, "_process_response"), (openai.Stream, "_iter_events")],
)
def test_a_version_without_what_is_needed_is_refused_and_left_alone(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, name)
    before = attributes()

    with pytest.raises(PluginError, match=rf"openai {openai.__version__} .*{owner.__name__}\.{name}"):
        OpenAIIntegration().install(MemoryRecorder())
    assert attributes() == before


def test_the_patched_methods_keep_their_names_and_signatures(recorder: MemoryRecorder) -> None:
    assert SyncAPIClient.request.__name__ == "request"
    assert list(inspect.signature(SyncAPIClient.request).parameters)[:3] == ["self", "cast_to", "options"]
    assert inspect.iscoroutinefunction(AsyncAPIClient.request)


def test_a_call_in_flight_when_the_patches_go_is_finished() -> None:
    memory = MemoryRecorder()
    undo = OpenAIIntegration().install(memory)
    with FakeOpenAI() as server, openai.OpenAI(base_url=server.base_url, api_key="test") as client:
        chunks = client.chat.completions.create(**ASK, stream=True)
        undo()
        list(chunks)

    assert memory.call.outcome == "ok"
    assert memory.call.events == server.exchanges[0].events


class BrokenRecorder(MemoryRecorder):
    def start_call(self, *, integration: str, api: str, url: str, streamed: bool) -> MemoryCall | None:
        raise RuntimeError("a fault of ours")


def test_a_fault_of_ours_is_counted_and_logged_once_and_the_call_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("LIGHTNING_STRICT")
    faults._logged.discard("openai attempt")
    before = faults.counters().get("error.openai attempt", 0)
    undo = OpenAIIntegration().install(BrokenRecorder())
    with caplog.at_level(logging.WARNING, "lightning_sdk"):
        assert ask_once() == "Hello there"
        assert ask_once() == "Hello there"
    undo()

    assert len(caplog.records) == 1
    assert faults.counters()["error.openai attempt"] == before + 2


def test_in_strict_mode_a_fault_of_ours_is_raised() -> None:
    undo = OpenAIIntegration().install(BrokenRecorder())
    with pytest.raises(RuntimeError, match="a fault of ours"):
        ask_once()
    undo()


def test_a_response_that_cannot_be_followed_is_recorded_as_an_error_and_still_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.delenv("LIGHTNING_STRICT")
    monkeypatch.setattr("lightning_integrations._stainless.OpenResponse", refuse)
    memory = MemoryRecorder()
    undo = OpenAIIntegration().install(memory)
    with FakeOpenAI() as server, openai.OpenAI(base_url=server.base_url, api_key="test") as client:
        chunks = list(client.chat.completions.create(**ASK, stream=True))
    undo()

    assert len(chunks) == len(server.exchanges[0].events) - 1
    assert memory.call.outcome == "error"
    assert str(memory.call.error) == "a fault of ours"
