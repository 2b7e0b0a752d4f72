"""A group of four rollouts of one task, small enough to be worked out by hand, as records in a spool."""

from __future__ import annotations

from pathlib import Path

from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.records import OUTCOMES
from support.record_factory import Tape, chat_body

TASK = "capital"
AIR = "[air.tool_error]\nweight = -0.1\n"


def explained_id(letter: str) -> str:
    """ "ro_000aeee…" for "a"."""
    return f"ro_000{letter}" + "e" * 28


def write_group(spool: Path) -> None:
    """Four rollouts.

    a: the solver asks for a tool (tokens 5 to 8 of its sequence), which raises, and answers (11 to 13); a critic on
       another engine, which tells no token ids. Rewards: 1 and, by name for #1, -0.2; a first verdict was replaced.
    b: the solver alone, 2 tokens, reward 0.
    c: the solver alone, 3 tokens, reward 1.
    d: the solver alone, no reward.
    """
    a = _begin("a")
    asks = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "t", "type": "function", "function": {"name": "search", "arguments": "{}"}}],
    }
    prompt = [1, 2, 3, 4, 5]
    a.call(
        "ca_a0",
        chat_body(asks, id="a0", prompt_ids=prompt, ids=[[6, 7, 8, 9]]),
        scope="sc_a",
        agent="solver",
    )
    tool = {"tool_call_id": "tc_a", "name": "search", "arguments": b"{}", "outcome": OUTCOMES["error"]}
    a.write(scope="sc_a", tool_call={**tool, "error": {"type": "TimeoutError", "message": "5 s"}})
    a.engine_call("ca_a1", [*prompt, 6, 7, 8, 9, 10, 11], [12, 13, 14], scope="sc_a", agent="solver")
    a.reward(0.5, scope="sc_a", call="ca_a1", id="judge")
    a.call("ca_a2", scope="sc_a", agent="critic")
    a.reward({"brevity": -0.2}, "call", scope="sc_a", call="ca_a1")
    a.reward({"correct": 1.0, "style": 0.0}, scope="sc_a", call="ca_a2", id="judge")
    _end(a, spool)
    for letter, tokens, reward in (("b", [6, 7], 0.0), ("c", [6, 7, 8], 1.0), ("d", [6], None)):
        tape = _begin(letter)
        tape.engine_call(f"ca_{letter}0", [1, 2, 3], tokens, scope=f"sc_{letter}", agent="solver")
        if reward is not None:
            tape.reward(reward, scope=f"sc_{letter}", call=f"ca_{letter}0")
        _end(tape, spool)


def _begin(letter: str) -> Tape:
    tape = Tape(letter, rollout=explained_id(letter), group="the group", second=100 * ord(letter))
    tape.start(task=TASK)
    tape.open_scope(f"sc_{letter}", "solver")
    return tape


def _end(tape: Tape, spool: Path) -> None:
    tape.close_scope("sc_" + tape.producer[:1].decode())
    tape.finish()
    writer = SpoolWriter(spool, tape.producer)
    for item in tape.records:
        writer.append(item.record.SerializeToString())
    writer.close()
