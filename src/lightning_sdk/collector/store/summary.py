"""What a rollout's summary becomes with each record. Pure; the same for every store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lightning_sdk._proto.read_pb2 import RolloutSummary
from lightning_sdk.records import Outcome, Record

RUNNING: Final = "running"
# As the assembly names them.
_OUTCOMES: Final[dict[int, str]] = {
    Outcome.OUTCOME_OK: "succeeded",
    Outcome.OUTCOME_CANCELLED: "cancelled",
    Outcome.OUTCOME_CLOSED_EARLY: "cancelled",
    Outcome.OUTCOME_ABANDONED: "cancelled",
}


@dataclass(slots=True)
class RolloutState:
    """The facts of a summary, of the latest attempt. Records of earlier ones only raise the revision."""

    rollout_id: str
    project: str = ""
    run_id: str = ""
    group_id: str = ""
    task_id: str = ""
    split: str = ""
    attempt: int = 0
    start_ns: int = 0
    end_ns: int = 0
    outcome: str = RUNNING
    root_agent: str = ""
    calls: int = 0
    tool_calls: int = 0
    rewards: int = 0
    complete: bool = False
    revision: int = 0
    # Whether RolloutStart is here; until then start_ns is the earliest of what is.
    started: bool = False

    @property
    def ended(self) -> bool:
        """Whether the rollout's end has arrived."""
        return self.outcome != RUNNING

    def apply(self, record: Record) -> None:
        """Take one more record into account, in any order of arrival."""
        if record.attempt > self.attempt:
            self._begin_attempt(record.attempt)
        elif record.attempt and record.attempt < self.attempt:
            return
        if record.group_id and not self.group_id:
            self.group_id = record.group_id
        if not self.started and record.start_ns and (not self.start_ns or record.start_ns < self.start_ns):
            self.start_ns = record.start_ns
        self._apply_body(record)

    def to_message(self) -> RolloutSummary:
        """As it crosses the wire."""
        return RolloutSummary(
            rollout_id=self.rollout_id,
            project=self.project,
            run_id=self.run_id,
            group_id=self.group_id,
            task_id=self.task_id,
            split=self.split,
            attempt=self.attempt,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            outcome=self.outcome,
            root_agent=self.root_agent,
            calls=self.calls,
            tool_calls=self.tool_calls,
            rewards=self.rewards,
            complete=self.complete,
            revision=self.revision,
        )

    def _begin_attempt(self, attempt: int) -> None:
        self.attempt = attempt
        self.start_ns = self.end_ns = 0
        self.outcome = RUNNING
        self.root_agent = ""
        self.calls = self.tool_calls = self.rewards = 0
        self.complete = self.started = False

    def _apply_body(self, record: Record) -> None:
        kind = record.WhichOneof("body")
        if kind == "call":
            self.calls += 1
        elif kind == "tool_call":
            self.tool_calls += 1
        elif kind == "reward":
            self.rewards += 1
        elif kind == "scope_start":
            if not record.scope_start.parent_scope_id and not self.root_agent:
                self.root_agent = record.scope_start.agent
        elif kind == "rollout_start":
            start = record.rollout_start
            self.project, self.run_id = start.project, start.run_id
            self.task_id, self.split = start.task_id, start.split
            self.start_ns, self.started = record.start_ns, True
        elif kind == "rollout_end":
            self.end_ns = record.end_ns
            self.outcome = _OUTCOMES.get(record.rollout_end.outcome, "failed")
