"""Records, written tersely: a `Tape` is one producer's stream, whose clock moves by one second a record.

A second is 10**9 ns and starts at 0, so that the n-th thing on a machine happens at n seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lightning_sdk.records import (
    OUTCOMES,
    OutcomeName,
    Record,
    Reward,
    SourcedRecord,
    pack_float32,
    pack_int32,
)

SECOND = 10**9
_BOUND = {
    "call": Reward.BOUND_CALL,
    "scope": Reward.BOUND_SCOPE,
    "context": Reward.BOUND_CONTEXT,
    "rollout": Reward.BOUND_ROLLOUT,
    "none": Reward.BOUND_NONE,
}


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def chat_request(*contents: str, **fields: Any) -> dict[str, Any]:
    """A chat request whose messages alternate between user and assistant."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
    return {"model": "tiny", "messages": messages, **fields}


def chat_body(
    *answers: str | dict[str, Any],
    id: str = "chatcmpl-1",
    prompt_ids: Sequence[int] | None = None,
    ids: Sequence[Sequence[int]] | None = None,
    finish_reason: str = "stop",
    usage: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A chat completion with one choice an answer; `prompt_ids` and `ids` as vLLM adds them."""
    choices: list[dict[str, Any]] = []
    for index, answer in enumerate(answers):
        message = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": finish_reason}
        if ids is not None:
            choice["token_ids"] = list(ids[index])
        choices.append(choice)
    body: dict[str, Any] = {"id": id, "object": "chat.completion", "model": "tiny-1", "choices": choices}
    if prompt_ids is not None:
        body["prompt_token_ids"] = list(prompt_ids)
    if usage is not None:
        body["usage"] = usage
    return body


class Tape:
    """Everything one producer writes."""

    def __init__(
        self,
        name: str = "p",
        *,
        rollout: str = "ro_1",
        group: str = "group",
        attempt: int = 1,
        second: int = 0,
    ) -> None:
        self.producer = name.encode().ljust(16, b"\0")
        self.rollout = rollout
        self.group = group
        self.attempt = attempt
        self.second = second
        self.order = 0
        self.records: list[SourcedRecord] = []

    def tick(self) -> tuple[int, int]:
        """Something begins: its order, and its second."""
        self.order += 1
        self.second += 1
        return self.order, self.second

    def write(self, begun: tuple[int, int] | None = None, **fields: Any) -> Record:
        """Write a record; one that began earlier says when by what `tick` gave."""
        order, second = begun or self.tick()
        record = Record(
            order=order,
            start_ns=second * SECOND,
            end_ns=self.second * SECOND,
            rollout_id=self.rollout,
            attempt=self.attempt,
            group_id=self.group,
        )
        scope = fields.pop("scope", "")
        record.MergeFrom(Record(scope_id=scope, **fields))
        self.records.append(SourcedRecord(self.producer, len(self.records) + 1, record))
        return record

    def join(self, parent: Tape | None = None, moment: int | None = None) -> None:
        join: dict[str, Any] = {"pid": 1}
        if parent is not None:
            join["parent_producer"] = parent.producer
            join["parent_order"] = parent.order if moment is None else moment
        self.write(join=join)

    def leave(self, count: int | None = None) -> None:
        self.write(leave={"count": len(self.records) + 1 if count is None else count})

    def start(self, task: str = "task", metadata: dict[str, Any] | None = None, **fields: Any) -> None:
        self.join()
        start = {"project": "demo", "run_id": "run_1", "task_id": task, **fields}
        self.write(rollout_start={**start, "metadata": to_json(metadata or {})})

    def end(self, outcome: OutcomeName = "ok", error: tuple[str, str] | None = None) -> None:
        end: dict[str, Any] = {"outcome": OUTCOMES[outcome]}
        if error is not None:
            end["error"] = {"type": error[0], "message": error[1]}
        self.write(rollout_end=end)

    def finish(self, outcome: OutcomeName = "ok") -> None:
        self.end(outcome)
        self.leave()

    def open_scope(self, scope: str, agent: str = "agent", parent: str = "") -> None:
        self.write(scope=scope, scope_start={"agent": agent, "parent_scope_id": parent})

    def close_scope(self, scope: str, outcome: OutcomeName = "ok") -> None:
        self.write(scope=scope, scope_end={"outcome": OUTCOMES[outcome]})

    def call(
        self,
        call_id: str,
        body: dict[str, Any] | bytes | None = None,
        *,
        request: dict[str, Any] | bytes | None = None,
        events: Sequence[dict[str, Any] | bytes] | None = None,
        scope: str = "",
        begun: tuple[int, int] | None = None,
        outcome: OutcomeName = "ok",
        **fields: Any,
    ) -> Record:
        """A chat call; without `body` and `events` it was answered "ok"."""
        call: dict[str, Any] = {
            "call_id": call_id,
            "integration": "openai",
            "api": "chat.completions",
            "agent": "agent",
            "url": "http://127.0.0.1/v1/chat/completions",
            "attempts": 1,
            "status": 200,
            "outcome": OUTCOMES[outcome],
        }
        call["request"] = _bytes(chat_request("hello") if request is None else request)
        if events is not None:
            call["streamed"] = True
            call["events"] = [_bytes(event) for event in events]
        else:
            call["response"] = _bytes(chat_body("ok", id=f"re_{call_id}") if body is None else body)
        call.update(fields)
        return self.write(begun, scope=scope, call=call)

    def engine_call(
        self,
        call_id: str,
        prompt: Sequence[int],
        *responses: Sequence[int],
        finish_reason: str = "stop",
        **fields: Any,
    ) -> Record:
        """A call to an engine that answers token ids."""
        answers = [f"answer {at}" for at in range(len(responses))]
        body = chat_body(
            *answers, id=f"re_{call_id}", prompt_ids=prompt, ids=responses, finish_reason=finish_reason
        )
        return self.call(call_id, body, **fields)

    def tokens(
        self,
        call_id: str,
        prompt: Sequence[int],
        *responses: Sequence[int],
        logprobs: Sequence[Sequence[float]] | None = None,
        response_id: str = "",
        version: int = 0,
        **fields: Any,
    ) -> Record:
        """What our policy endpoint writes: outside any rollout."""
        choices = [
            {
                "index": index,
                "token_ids": pack_int32(ids),
                "logprobs": pack_float32(logprobs[index] if logprobs is not None else [-0.5] * len(ids)),
            }
            for index, ids in enumerate(responses)
        ]
        tokens = {
            "call_id": call_id,
            "response_id": response_id,
            "policy": "policy",
            "policy_version": version,
            "policy_version_end": version,
            "prompt_token_ids": pack_int32(prompt),
            "choices": choices,
            "logprobs_mode": "processed",
            **fields,
        }
        record = self.write(tokens=tokens)
        record.rollout_id = record.group_id = ""
        record.attempt = 0
        return record

    def reward(
        self,
        value: float | dict[str, float],
        bound: str = "scope",
        *,
        call: str = "",
        choice: int | None = None,
        scope: str = "",
        id: str = "",
    ) -> Record:
        parts = value if isinstance(value, dict) else {"reward": value}
        reward: dict[str, Any] = {
            "bound": _BOUND[bound],
            "call_id": call,
            "reward_id": id,
            "components": [{"name": name, "value": part} for name, part in parts.items()],
        }
        if choice is not None:
            reward["choice"] = choice
        return self.write(scope=scope, reward=reward)

    def tool(self, name: str, arguments: bytes, result: bytes, scope: str = "") -> None:
        tool = {"tool_call_id": f"tc_{name}", "name": name, "arguments": arguments, "result": result}
        self.write(scope=scope, tool_call={**tool, "outcome": OUTCOMES["ok"]})

    def note(self, **values: Any) -> None:
        self.write(note={"values": to_json(values)})


def _bytes(value: dict[str, Any] | bytes) -> bytes:
    return value if isinstance(value, bytes) else to_json(value)
