"""The record of a call in harness mode: request and response as they were on the wire, under a call id of ours."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Protocol

from lightning_sdk.client.journal import told_error
from lightning_sdk.client.redact import redact
from lightning_sdk.client.segments import MAX_RECORD_BYTES
from lightning_sdk.ids import fitted, new_id
from lightning_sdk.policy.errors import ApiError
from lightning_sdk.policy.harness import Harness
from lightning_sdk.records import OUTCOMES, Call, OutcomeName, Record

INTEGRATION: Final = "harness"
# What bodies may have beside the rest of a record; a redaction is never much longer than what it replaces.
_MOST_BODY_BYTES: Final = MAX_RECORD_BYTES - (4 << 20)
# Around each event.
_EVENT_BYTES: Final = 6


class Recording(Protocol):
    """What is told of one call. The first `finish` counts."""

    def answered(self, status: int, body: bytes) -> None:
        """The response, where it is no stream."""

    def streamed(self, events: Sequence[bytes]) -> None:
        """The data of some events."""

    def finish(self, outcome: OutcomeName, error: ApiError | None = None) -> None:
        """It is over. Before its last byte is sent, so that an end that follows comes after it."""


class _Nothing:
    def answered(self, status: int, body: bytes) -> None:
        return

    def streamed(self, events: Sequence[bytes]) -> None:
        return

    def finish(self, outcome: OutcomeName, error: ApiError | None = None) -> None:
        return


# Of a call whose client records it.
NOT_RECORDED: Final[Recording] = _Nothing()


class HarnessCall:
    """A `Recording` into a rollout, which stays open until it is over."""

    def __init__(
        self, harness: Harness, rollout_id: str, *, api: str, path: str, agent: str, request: bytes
    ) -> None:
        """Begin.

        Args:
            harness: where the rollout is.
            rollout_id: as the path says it.
            api: the shape of request and response.
            path: of the URL.
            agent: who calls, where that is told.
            request: the body.

        Raises:
            ApiError: the rollout takes no calls.
        """
        self._harness = harness
        self._rollout = harness.enter(rollout_id)
        self.call_id = new_id("ca")
        self.split = self._rollout.split
        self._record = Record(order=harness.tick(), start_ns=time.time_ns())
        self._told = Call(
            call_id=self.call_id, integration=INTEGRATION, api=api, agent=fitted(agent), url=path, attempts=1
        )
        self._request = request
        self._response = b""
        self._events: list[bytes] = []
        self._over = False

    def answered(self, status: int, body: bytes) -> None:
        """See `Recording.answered`."""
        self._told.status = status
        self._response = body

    def streamed(self, events: Sequence[bytes]) -> None:
        """See `Recording.streamed`."""
        self._told.status = 200
        self._told.streamed = True
        self._events += events

    def finish(self, outcome: OutcomeName, error: ApiError | None = None) -> None:
        """See `Recording.finish`."""
        if self._over:
            return
        self._over = True
        call = self._told
        call.outcome = OUTCOMES[outcome]
        if error is not None:
            call.error.CopyFrom(told_error(error.code or error.kind, error.message))
        self._add_bodies(call)
        self._record.end_ns = time.time_ns()
        self._record.call.CopyFrom(call)
        self._harness.write(self._rollout, self._record)
        self._harness.leave(self._rollout)

    def _add_bodies(self, call: Call) -> None:
        bodies = [self._request, self._response, *self._events]
        size = sum(map(len, bodies)) + _EVENT_BYTES * len(self._events)
        if size > _MOST_BODY_BYTES:
            call.error.type = "lightning_sdk.RecordTooLarge"
            call.error.message = (
                f"request and response have {size} bytes, and a record {_MOST_BODY_BYTES} at the most: they "
                "were withheld"
            )
            return
        cleaned = [redact(body) for body in bodies]
        call.request, call.response = cleaned[0][0], cleaned[1][0]
        call.events.extend(event for event, _ in cleaned[2:])
        call.redactions = sum(count for _, count in cleaned)
