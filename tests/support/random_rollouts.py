"""Whole rollouts of every shape that a learner meets, drawn at random: what is kept of them must lose nothing."""

from __future__ import annotations

import random
from typing import Any

from lightning_sdk.records import OutcomeName, SourcedRecord
from support.record_factory import Tape, chat_body, chat_request

_HOSTILE = [
    b"",
    b"{",
    b"\xff",
    b"[]",
    b'{"messages": 3}',
    b'{"choices": [{"message": {}, "index": -1}]}',
    b"null",
]
_OUTCOMES: list[OutcomeName] = ["ok", "ok", "ok", "ok", "error", "cancelled", "closed_early", "abandoned"]


def random_rollout(rng: random.Random, name: str) -> list[SourcedRecord]:
    """The records of one rollout and its tokens; nearly always complete."""
    tape = Tape(name, rollout=f"ro_{name}", group=rng.choice(["", "group"]))
    tape.start(metadata=rng.choice([{}, {"n": 1, "x": [1.5, None, "ü"]}, {"half": "\ud800"}]))
    if rng.random() < 0.5:
        tape.note(score=rng.random(), note="later")
    histories: list[list[int]] = [[]]
    for at in range(rng.randrange(8)):
        _random_call(rng, tape, f"{name}_{at}" if rng.random() < 0.9 else "", histories)
        if rng.random() < 0.3:
            tape.reward(
                rng.choice([1.0, -0.0, 0.1, {"a": 1e300, "b": -2.5}]),
                rng.choice(["scope", "rollout", "none"]),
            )
        if rng.random() < 0.2:
            arguments = rng.choice([b'{"q": "\\ud800"}', b"{}", b"\xff", b"[1, 1.0, true]"])
            tape.tool(f"{name}_{at}", arguments, b'"found"', scope="sc_1")
        if rng.random() < 0.2:
            tape.open_scope(f"sc_{at}", rng.choice(["writer", ""]), rng.choice(["", "sc_0"]))
    tape.end(rng.choice(_OUTCOMES))
    for record in [each.record for each in tape.records if each.record.HasField("tokens")]:
        record.attempt = 0
    # What the endpoint writes is no record of the rollout.
    tape.leave(sum(not each.record.HasField("tokens") for each in tape.records) + 1 + (rng.random() < 0.1))
    return tape.records


def _random_call(rng: random.Random, tape: Tape, call_id: str, histories: list[list[int]]) -> None:
    prompt = rng.choice(histories) + [rng.randrange(9) for _ in range(rng.randrange(3))]
    responses = [[rng.randrange(9) for _ in range(rng.randrange(4))] for _ in range(rng.choice([1, 1, 1, 2]))]
    request: dict[str, Any] | bytes = chat_request("hello", temperature=rng.choice([0, 1.0]))
    if rng.random() < 0.2:
        request = chat_request("hello", response_format={"type": "json_object"}, tools=[{"type": "function"}])
    if rng.random() < 0.1:
        request = rng.choice(_HOSTILE)
    common: dict[str, Any] = {
        "request": request,
        "outcome": rng.choice(_OUTCOMES),
        "agent": rng.choice(["writer", "critic", ""]),
        "scope": rng.choice(["", "sc_0", "sc_1"]),
    }
    kind = rng.randrange(5)
    if kind == 0:
        tape.call(call_id, rng.choice([None, *_HOSTILE]), **common)
    elif kind == 1:
        tape.engine_call(call_id, prompt, *responses, finish_reason=rng.choice(["stop", "length"]), **common)
    else:
        body = chat_body(*["answer"] * len(responses), id=f"re_{call_id}")
        tape.call(call_id, body, **common)
        logprobs = [
            [rng.choice([-0.5, -1e-30, float("-inf")]) if rng.random() < 0.1 else -0.25 for _ in ids]
            for ids in responses
        ]
        settings = rng.choice(
            [{}, {"sampling_requested": b'{"n": 1}', "sampling_effective": b'{"top_p": 1.0}'}]
        )
        tape.tokens(call_id, prompt, *responses, logprobs=logprobs, version=rng.choice([0, 7]), **settings)
    histories.append(prompt + responses[-1])
