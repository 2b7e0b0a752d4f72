"""What integrations report model calls to. One for the whole process, so that patches are made once."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from lightning_sdk.client import faults, journal, runtime, scope
from lightning_sdk.client.otel import active_ids
from lightning_sdk.client.redact import redact
from lightning_sdk.client.urls import public_url
from lightning_sdk.ids import new_id
from lightning_sdk.plugins import CALL_ID_HEADER
from lightning_sdk.records import OUTCOMES, Call, OutcomeName, Record

# What an endpoint may answer as a call id: bytes from outside.
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
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


class CallRecording:
    """A `plugins.CallRecording`: keeps references to bytes that exist, and writes one record at the end."""

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
        self._began = journal.ticked(receiver, active_ids())

    @property
    def call_id(self) -> str:
        """See `plugins.CallRecording`."""
        return self._call_id

    def headers(self, url: str) -> Mapping[str, str]:
        """See `plugins.CallRecording`."""
        with faults.guard("call_headers"):
            prefix = self._runtime.policy_prefix
            if prefix is not None and prefix.contains(url):
                return {CALL_ID_HEADER: self._call_id}
        return {}

    def sent(self, body: bytes) -> None:
        """See `plugins.CallRecording`. What an earlier attempt was answered is forgotten."""
        with faults.guard("call_sent"):
            self._request = bytes(body)
            self._attempts += 1
            self._status = 0
            self._response = b""
            self._events = []
            self._endpoint_call_id = ""

    def answered(self, status: int, headers: Mapping[str, str]) -> None:
        """See `plugins.CallRecording`."""
        with faults.guard("call_answered"):
            self._status = int(status)
            answered_id = _header(headers, CALL_ID_HEADER)
            if answered_id is not None and answered_id != self._call_id and _CALL_ID.fullmatch(answered_id):
                self._endpoint_call_id = answered_id

    def received(self, body: bytes) -> None:
        """See `plugins.CallRecording`."""
        with faults.guard("call_received"):
            self._response = bytes(body)

    def event(self, data: str | bytes) -> None:
        """See `plugins.CallRecording`."""
        with faults.guard("call_event"):
            self._events.append(data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data))

    def finish(self, outcome: OutcomeName, error: BaseException | None = None) -> None:
        """See `plugins.CallRecording`."""
        try:
            self._unfinished.pop()
        except IndexError:
            return
        with faults.guard("call_finish"):
            self._write(outcome, error)

    def _write(self, outcome: OutcomeName, error: BaseException | None) -> None:
        end_ns = time.time_ns()
        hook = self._runtime.config.redact
        request, redactions = redact(self._request, hook)
        response, in_response = redact(self._response, hook)
        events = []
        for data in self._events:
            event, in_event = redact(data, hook)
            events.append(event)
            redactions += in_event
        call = Call(
            call_id=self._call_id,
            endpoint_call_id=self._endpoint_call_id,
            integration=self._integration,
            api=self._api,
            agent=self._scope.agent if self._scope else "",
            url=public_url(self._url),
            request=request,
            response=response,
            events=events,
            streamed=self._streamed,
            outcome=OUTCOMES[outcome],
            error=journal.error_of(self._runtime, error),
            attempts=self._attempts,
            status=self._status,
            redactions=redactions + in_response,
        )

        def fill(record: Record) -> None:
            record.end_ns = end_ns
            record.call.CopyFrom(call)

        if self._scope is None:
            journal.append_outside(self._runtime, self._began, fill)
        else:
            journal.append(self._scope, self._began, fill)
            if self._api not in _WITHOUT_ACTION:
                self._scope.call_finished(self._call_id)


def _header(headers: Mapping[str, str], name: str) -> str | None:
    """A header by its lower-case name; the mapping may or may not ignore case."""
    value = headers.get(name)
    if value is None:
        value = next((value for key, value in headers.items() if key.lower() == name), None)
    return value if isinstance(value, str) else None
