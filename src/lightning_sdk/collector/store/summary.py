"""What a rollout's summary becomes with each record. Pure; the same for every store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lightning_sdk._proto.read_pb2 import RolloutSummary
from lightning_sdk.mdp.frame import end_key, is_reward, start_key
from lightning_sdk.records import Record

RUNNING: Final = "running"
LOST: Final = "lost"


@dataclass(slots=True)
class RolloutState:
    """The facts of a summary, of one attempt: the latest. Equal to what the assembly makes of the records."""

    rollout_id: str
    project: str = ""
    run_id: str = ""
    group_id: str = ""
    task_id: str = ""
    split: str = ""
    attempt: int = 1
    start_ns: int = 0
    end_ns: int = 0
    outcome: str = RUNNING
    root_agent: str = ""
    # When the scope of root_agent began.
    root_start_ns: int = 0
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

    def apply(self, record: Record, *, again: bool = False) -> None:
        """Take one more record of this attempt (or of none) into account, in any order of arrival.

        Args:
            record: one that was not applied before.
            again: it tells of a call or tool call that another one told of, which is not counted twice.
        """
        if record.group_id and (not self.group_id or record.group_id < self.group_id):
            self.group_id = record.group_id
        if not self.started and record.start_ns and (not self.start_ns or record.start_ns < self.start_ns):
            self.start_ns = record.start_ns
        if not again:
            self._apply_body(record)

    def to_message(self) -> RolloutSummary:
        """As it crosses the wire."""
        return RolloutSummary(
            rollout_id=self.rollout_id,
            project=self.project,
            run_id=self.run_id,
            group_id=self.group_id or self.rollout_id,
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

    def _apply_body(self, record: Record) -> None:
        kind = record.WhichOneof("body")
        if kind == "call":
            self.calls += 1
        elif kind == "tool_call":
            self.tool_calls += 1
        elif kind == "reward":
            self.rewards += is_reward(record)
        elif kind == "scope_start":
            self._apply_scope(record)
        elif kind == "rollout_start":
            self._apply_start(record)
        elif kind == "rollout_end":
            key = end_key(record)
            if not self.ended or key > (self.outcome != LOST, self.end_ns, self.outcome):
                _, self.end_ns, self.outcome = key

    def _apply_scope(self, record: Record) -> None:
        """The earliest outermost agent is the root."""
        scope, key = record.scope_start, (record.start_ns, record.scope_start.agent)
        if scope.parent_scope_id or not scope.agent:
            return
        if not self.root_agent or key < (self.root_start_ns, self.root_agent):
            self.root_start_ns, self.root_agent = key

    def _apply_start(self, record: Record) -> None:
        key = start_key(record)
        if not self.started or key < (
            self.start_ns,
            self.project,
            self.run_id,
            self.task_id,
            self.split,
        ):
            self.start_ns, self.project, self.run_id, self.task_id, self.split = key
            self.started = True
