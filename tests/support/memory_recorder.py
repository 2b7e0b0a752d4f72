"""A `Recorder` that keeps what an integration reports, for tests of integrations by themselves."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from lightning_sdk.client import faults
from lightning_sdk.plugins import Route


@dataclass(eq=False)
class MemoryCall:
    """A `CallRecording`: what was reported, in the order of the contract, which it checks."""

    call_id: str
    integration: str
    api: str
    url: str
    streamed: bool
    extra_headers: Mapping[str, str]
    bodies: list[bytes] = field(default_factory=list)
    status: int = 0
    response_headers: dict[str, str] = field(default_factory=dict)
    response: bytes | None = None
    events: list[str] = field(default_factory=list)
    outcome: str | None = None
    error: BaseException | None = None
    finishes: int = 0
    # What came after the end, which no integration should send.
    late: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def attempts(self) -> int:
        return len(self.bodies)

    def headers(self, url: str) -> Mapping[str, str]:
        return self.extra_headers

    def sent(self, body: bytes) -> None:
        self._note_late("sent")
        self.bodies.append(body)

    def answered(self, status: int, headers: Mapping[str, str]) -> None:
        self._note_late("answered")
        self.status = status
        self.response_headers = dict(headers)

    def received(self, body: bytes) -> None:
        self._note_late("received")
        self.response = body

    def event(self, data: str | bytes) -> None:
        self._note_late("event")
        self.events.append(data if isinstance(data, str) else data.decode())

    def finish(self, outcome: str, error: BaseException | None = None) -> None:
        self.finishes += 1
        if self.finishes == 1:
            self.outcome, self.error = outcome, error
            self.over.set()

    def _note_late(self, what: str) -> None:
        if self.finishes:
            self.late.append(what)


class MemoryRecorder:
    """A `Recorder`. With `recording=False` it is outside any rollout: nothing is to be recorded."""

    def __init__(
        self,
        *,
        recording: bool = True,
        headers: Mapping[str, str] | None = None,
        route: Route | None = None,
    ) -> None:
        self._route = route
        self.calls: list[MemoryCall] = []
        self.recording = recording
        self._headers = dict(headers or {})
        self._lock = threading.Lock()

    @property
    def call(self) -> MemoryCall:
        """The only call there is."""
        (call,) = self.calls
        return call

    def start_call(self, *, integration: str, api: str, url: str, streamed: bool) -> MemoryCall | None:
        if not self.recording:
            return None
        with self._lock:
            call = MemoryCall(f"ca_{len(self.calls)}", integration, api, url, streamed, self._headers)
            self.calls.append(call)
            return call

    def route(self) -> Route | None:
        return self._route

    def fault(self, place: str, error: Exception) -> None:
        faults.report(place, error)
