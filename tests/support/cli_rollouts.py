"""Rollouts in a spool, record by record, with ids and times that tests can name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightning_sdk._proto.records_pb2 import (
    Call,
    Error,
    Join,
    Leave,
    Outcome,
    Record,
    Reward,
    RolloutEnd,
    RolloutStart,
    ScopeEnd,
    ScopeStart,
    ToolCall,
)
from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.ids import new_producer
from support.cli_episodes import at

USAGE = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}


def rollout_id(number: int) -> str:
    """ "ro_0001…": the number in the first four digits."""
    return f"ro_{number:04x}" + "e" * 28


def write_rollout(
    spool: Path,
    number: int,
    *,
    task_id: str = "math-17",
    run_id: str = "nightly",
    project: str = "default",
    reward: float | None = 1.0,
    calls: int = 1,
    failed_call: bool = False,
    ended: bool = True,
    destination: str = "",
) -> str:
    """Write one rollout as an agent's process would: it starts `number` seconds after START_NS and takes two.

    Its agent "solve" makes `calls` calls and then uses a tool. Returns the rollout's id.
    """
    writer = SpoolWriter(spool, new_producer(), destination=destination)
    script = Script(
        writer, rollout_id(number), f"group of {task_id}" if task_id else rollout_id(number), number * 1000
    )
    script.write(0, join=Join(pid=1, host="here"))
    start = RolloutStart(project=project, run_id=run_id, task_id=task_id, metadata=b"{}")
    script.write(0, rollout_start=start)
    script.scope_id = f"sc_{number}"
    script.write(0, scope_start=ScopeStart(agent="solve"))
    for index in range(calls):
        body = _failed_call() if failed_call else _call(f"question {index}", f"answer {index}")
        body.call_id = f"ca_{number}_{index}"
        script.write(100 + index, 50, call=body)
    tool = ToolCall(tool_call_id=f"tc_{number}", name="add", agent="solve", arguments=b'{"a":1}', result=b"2")
    tool.outcome = Outcome.OUTCOME_OK
    script.write(800, 4, tool_call=tool)
    if reward is not None:
        bound = Reward(bound=Reward.Bound.BOUND_SCOPE, call_id=f"ca_{number}_{calls - 1}" if calls else "")
        bound.components.add(name="", value=reward)
        script.write(1900, reward=bound)
    if ended:
        script.write(2000, scope_end=ScopeEnd(outcome=Outcome.OUTCOME_OK))
        script.scope_id = ""
        script.write(2000, rollout_end=RolloutEnd(outcome=Outcome.OUTCOME_OK))
        script.write(2000, leave=Leave(count=writer.written + 1))
    writer.close()
    return rollout_id(number)


class Script:
    """Writes the records of one rollout, each with the next tick of its producer's clock."""

    def __init__(self, writer: SpoolWriter, rollout: str, group: str, offset_ms: int) -> None:
        self.scope_id = ""
        self._writer = writer
        self._rollout = rollout
        self._group = group
        self._offset_ms = offset_ms
        self._order = 0

    def write(self, start_ms: int, duration_ms: int = 0, **body: Any) -> None:
        """Write one record with this body, so many milliseconds after the rollout's start."""
        self._order += 1
        record = Record(
            order=self._order,
            start_ns=at(self._offset_ms + start_ms),
            end_ns=at(self._offset_ms + start_ms + duration_ms),
            rollout_id=self._rollout,
            attempt=1,
            group_id=self._group,
            scope_id=self.scope_id,
            **body,
        )
        self._writer.append(record.SerializeToString())


def _call(question: str, answer: str) -> Call:
    request = {"model": "tiny-model", "messages": [{"role": "user", "content": question}]}
    response = {
        "id": f"chatcmpl-{answer}",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny-model",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"},
        ],
        "usage": USAGE,
    }
    call = _base_call(request)
    call.response = json.dumps(response).encode()
    call.outcome = Outcome.OUTCOME_OK
    call.status = 200
    return call


def _failed_call() -> Call:
    call = _base_call({"model": "tiny-model", "messages": [{"role": "user", "content": "question"}]})
    call.outcome = Outcome.OUTCOME_ERROR
    call.error.CopyFrom(Error(type="openai.RateLimitError", message="slow down"))
    call.status = 429
    call.attempts = 3
    return call


def _base_call(request: dict[str, Any]) -> Call:
    return Call(
        integration="openai",
        api="chat.completions",
        agent="solve",
        url="https://api.example/v1/chat/completions",
        request=json.dumps(request).encode(),
        attempts=1,
    )
