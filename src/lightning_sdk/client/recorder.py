"""What integrations report model calls to. One for the whole process, so that patches are made once."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

from lightning_sdk.client import faults, journal, runtime, scope
from lightning_sdk.client.otel import active_ids
from lightning_sdk.client.redact import redact
from lightning_sdk.client.segments import MAX_RECORD_BYTES
from lightning_sdk.client.urls import public_url
from lightning_sdk.errors import RoutingError
from lightning_sdk.ids import new_id
from lightning_sdk.plugins import CALL_ID, CALL_ID_HEADER, Route
from lightning_sdk.records import OUTCOMES, Call, OutcomeName, Record

# What a record may hold beside the rest of it; a redaction is never much longer than what it replaces.
_MAX_BODIES_BYTES: Final = MAX_RECORD_BYTES - (4 << 20)
# Around each event.
_EVENT_BYTES: Final = 6

# Calls that sample nothing: no action, so nothing that a reward could be for.
_WITHOUT_ACTION = frozenset({"embeddings"})


class ProcessRecorder:
    """A `plugins.Recorder` that gives each call to whatever records at that moment."""

    def start_call(self, *, integration: str, api: str, url: str, streamed: bool) -> CallRecording | None:
        """See `plugins.Recorder`."""
        with faults.guard("start_call"):
            current = scope.current()
            if current is not None:
                receiver = runtime.active_for(current.rollout)
            else:
                innermost = runtime.innermost_capture()
                if innermost is None:
                    faults.count("calls_outside_rollout")
                    return None
                receiver = innermost
            return CallRecording(
                receiver, current, integration=integration, api=api, url=url, streamed=streamed
            )
        return None

    def route(self) -> Route | None:
        """See `plugins.Recorder`. Outside any rollout there is no agent, and nothing is routed."""
        current = scope.current()
        if current is None:
            return None
        try:
            routing = runtime.routing_for(current.rollout)
            return None if routing is None else routing.route(current)
        except Exception as error:
            faults.report("route", error)
            raise RoutingError(
                f"where to send the model calls of agent {current.agent!r} cannot be told ({error}): please report it"
            ) from error

    def fault(self, place: str, error: Exception) -> None:
        """See `plugins.Recorder`."""
        faults.report(place, error)


class CallRecording:
    """A `plugins.CallRecording`: keeps references to bytes that exist, and writes one record at the end.

    In a forked child it is its parent's, and writes nothing.
    """

    __slots__ = (
        "_api",
        "_attempts",
        "_began",
        "_call_id",
        "_endpoint_call_id",
        "_events",
        "_integration",
        "_pid",
        "_request",
        "_response",
        "_runtime",
        "_scope",
        "_status",
        "_streamed",
        "_unfinished",
        "_url",
    )

    def __init__(
        self,
        receiver: runtime.Runtime,
        current: scope.Scope | None,
        *,
        integration: str,
        api: str,
        url: str,
        streamed: bool,
    ) -> None:
        self._call_id = new_id("ca")
        self._runtime = receiver
        # By value: the call belongs where it was made, wherever its answer is read.
        self._scope = current
        self._integration = integration
        self._api = api
        self._url = url
        self._streamed = streamed
        self._request = b""
        self._response = b""
        self._events: list[bytes] = []
        self._attempts = 0
        self._status = 0
        self._endpoint_call_id = ""
        # Popped by whoever finishes it: "once" without a lock.
        self._unfinished = [True]
        self._pid = os.getpid()
        self._began = journal.ticked(receiver, active_ids())

    @property
    def call_id(self) -> str:
        """See `plugins.CallRecording`."""
        return self._call_id

    def headers(self, url: str) -> Mapping[str, str]:
        """See `plugins.CallRecording`."""
        try:
            prefix = self._runtime.policy_prefix
            if prefix is not None and prefix.contains(url):
                return {CALL_ID_HEADER: self._call_id}
        except Exception as error:
            faults.report("call_headers", error)
        return {}

    def sent(self, body: bytes) -> None:
        """See `plugins.CallRecording`. What an earlier attempt was answered is forgotten."""
        try:
            self._request = bytes(body)
            self._attempts += 1
            self._status = 0
            self._response = b""
            self._events = []
            self._endpoint_call_id = ""
        except Exception as error:
            faults.report("call_sent", error)

    def answered(self, status: int, headers: Mapping[str, str]) -> None:
        """See `plugins.CallRecording`."""
        try:
            self._status = int(status)
            answered_id = _header(headers, CALL_ID_HEADER)
            if answered_id is not None and answered_id != self._call_id and CALL_ID.fullmatch(answered_id):
                self._endpoint_call_id = answered_id
        except Exception as error:
            faults.report("call_answered", error)

    def received(self, body: bytes) -> None:
        """See `plugins.CallRecording`."""
        try:
            self._response = bytes(body)
        except Exception as error:
            faults.report("call_received", error)

    def event(self, data: str | bytes) -> None:
        """See `plugins.CallRecording`."""
        try:
            self._events.append(data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data))
        except Exception as error:
            faults.report("call_event", error)

    def finish(self, outcome: OutcomeName, error: BaseException | None = None) -> None:
        """See `plugins.CallRecording`."""
        if self._pid != os.getpid():
            return
        try:
            self._unfinished.pop()
        except IndexError:
            return
        try:
            self._write(outcome, error)
        except Exception as fault:
            faults.report("call_finish", fault)

    def _write(self, outcome: OutcomeName, error: BaseException | None) -> None:
        record = Record(end_ns=time.time_ns())
        # Filled in place: a Call that is made first would be copied, bodies and all.
        call = record.call
        if error is not None and (told := journal.error_of(self._runtime, error)) is not None:
            call.error.CopyFrom(told)
        size = (
            len(self._request) + len(self._response) + sum(_EVENT_BYTES + len(data) for data in self._events)
        )
        if size <= _MAX_BODIES_BYTES:
            self._add_bodies(call)
        else:
            faults.count("bodies_withheld")
            call.error.type = "lightning_sdk.RecordTooLarge"
            call.error.message = (
                f"request and response have {size} bytes, and a record {_MAX_BODIES_BYTES} at the most: they were "
                f"withheld{f' ({call.error.message})' if call.error.message else ''}"
            )
        call.call_id = self._call_id
        call.endpoint_call_id = self._endpoint_call_id
        call.integration = self._integration
        call.api = self._api
        call.url = public_url(self._url)
        call.streamed = self._streamed
        call.outcome = OUTCOMES[outcome]
        call.attempts = self._attempts
        call.status = self._status
        if self._scope is not None:
            call.agent = self._scope.agent
        if self._scope is None:
            journal.append_outside(self._runtime, self._began, record)
        else:
            journal.append(self._scope, self._began, record)
            if self._api not in _WITHOUT_ACTION:
                self._scope.call_finished(self._call_id)

    def _add_bodies(self, call: Call) -> None:
        hook = self._runtime.config.redact
        call.request, redactions = redact(self._request, hook)
        call.response, replaced = redact(self._response, hook)
        redactions += replaced
        for data in self._events:
            event, replaced = redact(data, hook)
            call.events.append(event)
            redactions += replaced
        call.redactions = redactions


def _header(headers: Mapping[str, str], name: str) -> str | None:
    """A header by its lower-case name. A dict does not ignore case, as other mappings of headers do."""
    value = headers.get(name)
    if value is None and isinstance(headers, dict):
        value = next((value for key, value in headers.items() if key.lower() == name), None)
    return value if isinstance(value, str) else None
