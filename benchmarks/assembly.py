"""From records to training rows: transitions a second of CPU time, how that grows, and what merging and packing save.

    python benchmarks/assembly.py [--peer PYTHON]

- memory: `assemble` turns records in memory into episodes.
- store: the same from the records in the SQLite store.
- keep: what a collector does once with a complete rollout: read its records, assemble, write the columns.
- kept: `read_episodes` from those columns; this is what a learner waits for.
- rows: `build_rows` turns episodes with advantages into rows.

Calls are of one size (1.9 KB of JSON, 300 prompt and 60 sampled tokens), so that the work of a transition should be
the same at 5, 50 and 500 calls a rollout; or resend a growing history, where the bytes of a rollout grow with the
square of its calls and the work of a byte should be the same.

The peer is agentlightning 0.3.0's `TracerTraceToTriplet`, run with the interpreter of an environment of its own:
the same calls as spans in memory, parsed already, to triplets (no rewards bound, no prefix found, no check).

Times are of the process's CPU, the best of five; so they are of one core, and a busy machine counts little.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

CALLS_A_ROLLOUT = (5, 50, 500)
TRANSITIONS = 5_000
GROWING_TRANSITIONS = {5: 2_000, 50: 1_000, 500: 500}
REPEATS = 5
TOKEN_BUDGET = 32_768
LOGNORMAL_ROLLOUTS = 512


@dataclass(frozen=True)
class DrawnCall:
    """One call before it is written down."""

    messages: list[dict[str, str]]
    answer: str
    prompt_ids: list[int]
    response_ids: list[int]


def fixed_calls(calls: int, rng: random.Random) -> list[DrawnCall]:
    """Calls of one size: each goes on from nothing."""
    return [
        DrawnCall(
            messages=[{"role": "system", "content": "s" * 500}, {"role": "user", "content": "u" * 400}],
            answer="a" * 240,
            prompt_ids=[rng.randrange(32_000) for _ in range(300)],
            response_ids=[rng.randrange(32_000) for _ in range(60)],
        )
        for _ in range(calls)
    ]


def growing_calls(calls: int, rng: random.Random) -> list[DrawnCall]:
    """A conversation: each turn adds 30 tokens (120 letters) and samples 40 (160 letters)."""
    drawn = []
    messages: list[dict[str, str]] = []
    ids: list[int] = []
    for _ in range(calls):
        messages = [*messages, {"role": "user", "content": "u" * 120}]
        ids = ids + [rng.randrange(32_000) for _ in range(30)]
        response = [rng.randrange(32_000) for _ in range(40)]
        drawn.append(DrawnCall(messages, "a" * 160, ids, response))
        messages = [*messages, {"role": "assistant", "content": "a" * 160}]
        ids = ids + response
    return drawn


def request_of(call: DrawnCall) -> dict[str, Any]:
    """The body of a request."""
    return {"model": "m", "messages": call.messages, "temperature": 1.0, "max_tokens": 512}


def response_of(call: DrawnCall, name: str) -> dict[str, Any]:
    """The body of a response."""
    message = {"role": "assistant", "content": call.answer, "refusal": None}
    counts = {"prompt_tokens": len(call.prompt_ids), "completion_tokens": len(call.response_ids)}
    return {
        "id": f"re_{name}",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {**counts, "total_tokens": sum(counts.values())},
    }


# --- ours -------------------------------------------------------------------------------------------------------


def records_of(rollout: int, calls: Sequence[DrawnCall]) -> Iterator[Any]:
    """All records of a rollout, as a producer and the policy endpoint write them."""
    from lightning_sdk.records import Outcome, Record, pack_float32, pack_int32

    order = 0

    def record(**body: Any) -> Record:
        nonlocal order
        order += 1
        return Record(
            order=order,
            start_ns=order,
            end_ns=order,
            rollout_id=f"ro_{rollout:032x}",
            attempt=1,
            group_id=f"group {rollout // 4}",
            **body,
        )

    yield record(join={"pid": 1})
    yield record(rollout_start={"project": "benchmark", "run_id": "run", "task_id": f"{rollout // 4}"})
    for at, call in enumerate(calls):
        name = f"{rollout:x}_{at:x}"
        yield record(
            call={
                "call_id": f"ca_{name}",
                "api": "chat.completions",
                "request": json.dumps(request_of(call)).encode(),
                "response": json.dumps(response_of(call, name)).encode(),
                "outcome": Outcome.OUTCOME_OK,
                "status": 200,
            }
        )
        choice = {
            "index": 0,
            "token_ids": pack_int32(call.response_ids),
            "logprobs": pack_float32([-0.5] * len(call.response_ids)),
        }
        order += 1
        yield Record(
            order=order,
            tokens={
                "call_id": f"ca_{name}",
                "response_id": f"re_{name}",
                "policy": "policy",
                "policy_version": 1,
                "policy_version_end": 1,
                "sampling_requested": b'{"temperature":1.0,"max_tokens":512}',
                "sampling_effective": b'{"temperature":1.0,"top_p":1.0,"max_tokens":512}',
                "logprobs_mode": "processed",
                "prompt_token_ids": pack_int32(call.prompt_ids),
                "choices": [choice],
            },
        )
    yield record(reward={"bound": 4, "components": [{"name": "reward", "value": float(rollout % 2)}]})
    yield record(rollout_end={"outcome": Outcome.OUTCOME_OK})
    yield record(leave={"count": order + 1 - len(calls)})


def sourced(rollouts: Sequence[Sequence[DrawnCall]]) -> list[list[Any]]:
    """The records of each rollout, each rollout a producer."""
    from lightning_sdk.records import SourcedRecord

    return [
        [
            SourcedRecord(at.to_bytes(16, "big"), seq, record)
            for seq, record in enumerate(records_of(at, calls), start=1)
        ]
        for at, calls in enumerate(rollouts)
    ]


def fill_store(path: Path, rollouts: Sequence[Sequence[Any]]) -> None:
    """Append every rollout's records."""
    from lightning_sdk._proto.ingest_pb2 import Frame
    from lightning_sdk.collector.store.sqlite import SqliteStore
    from lightning_sdk.records import checksum

    store = SqliteStore(path)
    for records in rollouts:
        data = [item.record.SerializeToString() for item in records]
        frames = [
            Frame(seq=at, checksum=checksum(each), record=each) for at, each in enumerate(data, start=1)
        ]
        store.append(records[0].producer, frames)
    store.close()


def assemble_store(path: Path) -> int:
    """Read and assemble rollout by rollout; the transitions."""
    from lightning_sdk._proto.read_pb2 import RolloutQuery
    from lightning_sdk.collector.store.sqlite_read import SqliteReader
    from lightning_sdk.mdp import assemble

    rollouts = SqliteReader(path).read_rollouts(RolloutQuery())
    return sum(len(episode.transitions) for _, records in rollouts for episode in assemble(records))


def keep_episodes(path: Path) -> int:
    """What a collector does when a rollout is complete; the rollouts."""
    from lightning_sdk.collector.store.sqlite import SqliteStore

    store = SqliteStore(path)
    kept = 0
    while more := store.keep_episodes(8):
        kept += more
    store.close()
    return kept


def read_kept(path: Path) -> int:
    """Read the episodes that are kept; the transitions."""
    from lightning_sdk._proto.read_pb2 import RolloutQuery
    from lightning_sdk.collector.store.sqlite_read import SqliteReader

    return sum(len(episode.transitions) for episode in SqliteReader(path).read_episodes(RolloutQuery()))


def rows_of(episodes: Sequence[Any]) -> list[Any]:
    """The rows of all episodes, each call worth its rollout's return."""
    from lightning_sdk.mdp import group_episodes
    from lightning_sdk.mdp.advantages import compute_advantages
    from lightning_sdk.mdp.sequences import build_rows

    return build_rows(compute_advantages(group_episodes(episodes), baseline="none"))


def best_of(work: Callable[[], Any]) -> float:
    """Seconds of CPU time, the least of some runs."""
    times = []
    for _ in range(REPEATS):
        gc.collect()
        started = time.process_time()
        result = work()
        times.append(time.process_time() - started)
        del result
    return min(times)


def draw(kind: str, calls: int, transitions: int) -> list[list[DrawnCall]]:
    """Rollouts of so many calls; seeded, so that the peer draws the same."""
    rng = random.Random(0)  # noqa: S311
    make = fixed_calls if kind == "fixed" else growing_calls
    return [make(calls, rng) for _ in range(transitions // calls)]


def measure(kind: str, calls: int, transitions: int, peer: str | None) -> float:
    """Print one line of the table; the seconds that a transition takes in memory."""
    from lightning_sdk.mdp import assemble

    rollouts = sourced(draw(kind, calls, transitions))
    megabytes = sum(item.record.ByteSize() for records in rollouts for item in records) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "traces.db")
        fill_store(path, rollouts)
        stored = best_of(lambda: assemble_store(path))
        started = time.process_time()
        assert keep_episodes(path) == len(rollouts)
        keeping = time.process_time() - started
        kept = best_of(lambda: read_kept(path))
        assert read_kept(path) == assemble_store(path) == transitions
    episodes = [episode for records in rollouts for episode in assemble(records)]
    memory = best_of(lambda: [assemble(records) for records in rollouts])
    rows = best_of(lambda: rows_of(episodes))
    theirs = None if peer is None else peer_time(peer, kind, calls, transitions)
    rates = [transitions / seconds for seconds in (memory, stored, keeping, kept, rows)]
    print(
        f"{kind:8}{calls:6}{megabytes * 1e3 / transitions:9.1f}"
        + "".join(f"{rate:10,.0f}" for rate in rates)
        + (f"{'-':>10}" if theirs is None else f"{transitions / theirs:10,.0f}")
        + f"{memory / transitions * 1e6:11.0f}{kept / transitions * 1e6:9.1f}{memory / megabytes * 1e3:9.2f}",
        flush=True,
    )
    return memory / transitions


# --- the peer ---------------------------------------------------------------------------------------------------


def peer_time(python: str, kind: str, calls: int, transitions: int) -> float:
    """Seconds that the peer takes for the same calls."""
    command = [python, __file__, "--as-peer", kind, str(calls), str(transitions)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(told.split()[-1])


def run_as_peer(kind: str, calls: int, transitions: int) -> None:
    """Print how long agentlightning's adapter takes; runs in its environment."""
    from agentlightning.adapter import TracerTraceToTriplet
    from agentlightning.types import Span

    def spans_of(rollout: int, drawn: Sequence[DrawnCall]) -> list[Any]:
        shared = {"rollout_id": f"ro_{rollout}", "attempt_id": "at_1", "trace_id": f"{rollout + 1:032x}"}
        spans = [
            Span.from_attributes(
                attributes={}, name="session", span_id=f"{1:016x}", start_time=0.0, end_time=1e9, **shared
            )
        ]
        for at, call in enumerate(drawn):
            attributes: dict[str, Any] = {
                "gen_ai.request.model": "m",
                "gen_ai.request.temperature": 1.0,
                "gen_ai.request.max_tokens": 512,
                "gen_ai.response.id": f"re_{rollout}_{at}",
                "gen_ai.response.model": "m",
                "gen_ai.usage.prompt_tokens": len(call.prompt_ids),
                "gen_ai.usage.completion_tokens": len(call.response_ids),
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.content": call.answer,
                "gen_ai.completion.0.finish_reason": "stop",
                "prompt_token_ids": call.prompt_ids,
                "response_token_ids": call.response_ids,
            }
            for number, message in enumerate(call.messages):
                attributes[f"gen_ai.prompt.{number}.role"] = message["role"]
                attributes[f"gen_ai.prompt.{number}.content"] = message["content"]
            spans.append(
                Span.from_attributes(
                    attributes=attributes,
                    sequence_id=at + 1,
                    name="openai.chat.completion",
                    span_id=f"{at + 2:016x}",
                    parent_id=f"{1:016x}",
                    start_time=at + 1.0,
                    end_time=at + 1.5,
                    **shared,
                )
            )
        return spans

    rollouts = [spans_of(at, drawn) for at, drawn in enumerate(draw(kind, calls, transitions))]
    adapter = TracerTraceToTriplet()
    assert sum(len(adapter.adapt(spans)) for spans in rollouts) == transitions
    print(best_of(lambda: [adapter.adapt(spans) for spans in rollouts]))


# --- merging and packing ----------------------------------------------------------------------------------------


def lognormal_calls(rng: random.Random) -> list[DrawnCall]:
    """A conversation of lognormal many turns and tokens; now and then it goes back a turn, or starts anew."""
    turns = min(max(int(rng.lognormvariate(1.8, 0.8)), 1), 60)
    drawn: list[DrawnCall] = []
    histories: list[list[int]] = [[]]
    for _ in range(turns):
        if rng.random() < 0.05:
            history = rng.choice(histories)
        elif rng.random() < 0.05:
            history = []
        else:
            history = histories[-1]
        prompt = history + [
            rng.randrange(32_000) for _ in range(min(int(rng.lognormvariate(4.5, 1.0)) + 1, 2_000))
        ]
        response = [rng.randrange(32_000) for _ in range(min(int(rng.lognormvariate(4.5, 0.9)) + 1, 2_000))]
        if len(prompt) + len(response) > TOKEN_BUDGET // 2:
            break
        histories.append(prompt + response)
        drawn.append(DrawnCall([{"role": "user", "content": "u"}], "a", prompt, response))
    return drawn


def measure_merging() -> None:
    """Print what merging and packing save."""
    from lightning_sdk.mdp import assemble
    from lightning_sdk.mdp.packing import measure_packing, pack

    rng = random.Random(0)  # noqa: S311
    rollouts = [calls for calls in (lognormal_calls(rng) for _ in range(LOGNORMAL_ROLLOUTS)) if calls]
    rows = rows_of([episode for records in sourced(rollouts) for episode in assemble(records)])
    calls = [call for drawn in rollouts for call in drawn]
    apart = sum(len(call.prompt_ids) + len(call.response_ids) for call in calls)
    lengths = [row.length for row in rows]
    trained = sum(row.trained_tokens for row in rows)
    assert trained == sum(len(call.response_ids) for call in calls)
    print(f"\n{len(rollouts)} rollouts, calls a rollout: median {statistics.median(map(len, rollouts)):.0f}, "
          f"most {max(map(len, rollouts))}; {trained:,} sampled tokens")  # fmt: skip
    print(f"a row a call        {len(calls):8,} rows {apart:12,} tokens")
    print(
        f"merged              {len(rows):8,} rows {sum(lengths):12,} tokens: {apart / sum(lengths):.1f} times fewer"
    )
    bins: list[list[int]] = []
    taken = time.process_time()
    bins = pack(lengths, TOKEN_BUDGET)
    taken = time.process_time() - taken
    stats = measure_packing(lengths, bins, TOKEN_BUDGET)
    print(
        f"packed, best fit    {stats.bins:8,} micro-batches of {TOKEN_BUDGET:,}: {stats.waste:.1%} empty, "
        f"none has fewer than {stats.least_bins:,}; {len(rows) / taken:,.0f} rows/s"
    )
    for name, order in (
        ("as they come", list(range(len(lengths)))),
        ("sorted", sorted(range(len(lengths)), key=lengths.__getitem__)),
    ):
        batches = [[lengths[at] for at in order[first : first + 8]] for first in range(0, len(order), 8)]
        room = sum(len(batch) * max(batch) for batch in batches)
        print(f"padded by 8, {name:13}{len(batches):2,} batches: {1 - sum(lengths) / room:.1%} padding")
    first_fit = list(
        accumulate(lengths, lambda full, more: more if full + more > TOKEN_BUDGET else full + more)
    )
    in_turn = sum(after <= before for before, after in pairwise(first_fit)) + 1
    print(
        f"filled in turn      {in_turn:8,} micro-batches: {1 - sum(lengths) / (in_turn * TOKEN_BUDGET):.1%} empty"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the assembly.")
    parser.add_argument("--peer", help="the python of an environment that has agentlightning 0.3.0")
    parser.add_argument("--as-peer", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_peer:
        kind, calls, transitions = arguments.as_peer
        run_as_peer(kind, int(calls), int(transitions))
        return
    if arguments.peer is None:
        print("no --peer: agentlightning's adapter is not measured", file=sys.stderr)
    print("transitions a second of one core, by calls a rollout")
    print(
        f"{'calls':14}{'KB each':>9}{'memory':>10}{'store':>10}{'keep':>10}{'kept':>10}{'rows':>10}{'peer':>10}"
        f"{'us memory':>11}{'us kept':>9}{'ms a MB':>9}"
    )
    each = [measure("fixed", calls, TRANSITIONS, arguments.peer) for calls in CALLS_A_ROLLOUT]
    print(f"of one size, a transition of 500 calls takes {each[-1] / each[1]:.2f} times one of 50")
    for calls in CALLS_A_ROLLOUT:
        measure("growing", calls, GROWING_TRANSITIONS[calls], arguments.peer)
    measure_merging()


if __name__ == "__main__":
    main()
