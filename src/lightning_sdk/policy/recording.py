"""What the engine knows of each answer, written as a Tokens record of the endpoint's own producer."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lightning_sdk.errors import SpoolError
from lightning_sdk.ids import new_id
from lightning_sdk.plugins import CALL_ID
from lightning_sdk.policy.choices import Choice
from lightning_sdk.policy.engine import LogprobsMode, SamplingParams
from lightning_sdk.policy.sampling import SamplingRequest, sampling_effective
from lightning_sdk.records import ChoiceTokens, Record, Tokens, pack_float32, pack_int32

_log = logging.getLogger(__name__)


class RecordWriter(Protocol):
    """The part of a producer that recording needs."""

    def tick(self) -> int:
        """Next value of the causal clock."""

    def write(self, record: Record) -> None:
        """Write a record.

        Raises:
            SpoolError: it cannot be written.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStart:
    """What is known of an answer before its first token."""

    call_id: str
    response_id: str
    order: int
    start_ns: int


class TokenRecorder:
    """Writes one Tokens record an answer. A failing spool is counted and logged once, and fails no answer."""

    def __init__(self, writer: RecordWriter, policy: str) -> None:
        self._writer = writer
        self._policy = policy
        self._lock = threading.Lock()
        self.failures = 0

    def begin(self, call_id: str, response_id: str) -> AnswerStart:
        """An answer begins."""
        return AnswerStart(
            call_id=call_id,
            response_id=response_id,
            order=self._writer.tick(),
            start_ns=time.time_ns(),
        )

    def write(
        self,
        start: AnswerStart,
        *,
        prompt: Sequence[int],
        choices: Sequence[Choice],
        asked: SamplingRequest,
        params: SamplingParams,
        logprobs_mode: LogprobsMode,
        versions: tuple[int, int],
    ) -> None:
        """An answer is over. `versions` of the policy sampled its first and its last token."""
        tokens = Tokens(
            call_id=start.call_id,
            response_id=start.response_id,
            policy=self._policy,
            policy_version=versions[0],
            policy_version_end=versions[1],
            prompt_token_ids=pack_int32(prompt),
            choices=[
                ChoiceTokens(
                    index=choice.index,
                    token_ids=pack_int32(token.id for token in choice.tokens),
                    logprobs=pack_float32(token.logprob for token in choice.tokens),
                    finish_reason=choice.finish_reason or "abort",
                )
                for choice in choices
            ],
            sampling_requested=_json(asked.told),
            sampling_effective=_json(sampling_effective(asked, params)),
            logprobs_mode=logprobs_mode,
        )
        record = Record(order=start.order, start_ns=start.start_ns, end_ns=time.time_ns(), tokens=tokens)
        try:
            self._writer.write(record)
        except SpoolError as error:
            self._count_failure(error)

    def _count_failure(self, error: SpoolError) -> None:
        with self._lock:
            self.failures += 1
            first = self.failures == 1
        if first:
            _log.error("token records are not written (said once, counted in /health): %s", error)


def choose_call_id(header: str | None) -> str:
    """The caller's call id, or a fresh one where it sent none or none that can be kept."""
    return header if header and CALL_ID.fullmatch(header) else new_id("ca")


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
