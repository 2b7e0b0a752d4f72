"""Text from records on a terminal.

1. Whatever ids, names, messages, errors, metadata and tool results hold, no command prints a character that a
   terminal obeys: in tables, trees and sentences, to a terminal (in colour) and to a pipe.
2. It is shown all the same: an escape as \\x1b, markup and emoji codes as they are.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from lightning_sdk._proto.records_pb2 import (
    Call,
    Error,
    Join,
    Note,
    Outcome,
    Reward,
    RolloutEnd,
    RolloutStart,
    ScopeEnd,
    ScopeStart,
    ToolCall,
)
from lightning_sdk.cli import console
from lightning_sdk.cli.main import main
from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.home import Home
from lightning_sdk.ids import new_producer
from support.cli_rollouts import Script

# Clears the screen, sets the title, moves back, turns the direction, starts a C1 sequence, links, breaks lines.
EVIL = "a\x1b[2J\x1b]0;t\x07\x08\u202e\x9b31m\x1b]8;;http://x\x1b\\\u2028\x85\x7f[red]m[/red][link=x]:boom:"
# An id of the form whose digits are cut short.
ROLLOUT = "ro_" + "\x1b[2J\x07[red]".ljust(32, "e")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# How a progress bar hides the cursor, goes back and removes itself.
PROGRESS = re.compile(r"\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K|\r")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def write_hostile_rollout(spool: Path) -> None:
    """One rollout with EVIL in every text that a record has."""
    writer = SpoolWriter(spool, new_producer(), destination="")
    script = Script(writer, ROLLOUT, EVIL, 0)
    script.write(0, join=Join(pid=1, host=EVIL))
    script.write(
        0,
        rollout_start=RolloutStart(
            project=EVIL, run_id=EVIL, task_id=EVIL, split=EVIL, metadata=_json({EVIL: EVIL})
        ),
    )
    script.scope_id = EVIL
    script.write(0, scope_start=ScopeStart(agent=EVIL))
    function = {"name": EVIL, "arguments": _json({"a": EVIL}).decode()}
    message = {"role": EVIL, "content": EVIL, "tool_calls": [{"id": EVIL, "function": function}]}
    request = {"model": EVIL, "messages": [{"role": EVIL, "content": [{"type": EVIL}, EVIL]}, message]}
    choices = [
        {"index": index, "message": {**message, "reasoning": EVIL}, "finish_reason": EVIL} for index in (0, 1)
    ]
    for name, response, outcome in (
        ("ok", {"id": EVIL, "model": EVIL, "choices": choices}, Outcome.OUTCOME_OK),
        ("one", {"id": EVIL, "model": EVIL, "choices": choices[:1]}, Outcome.OUTCOME_OK),
        ("bad", {EVIL: EVIL}, Outcome.OUTCOME_ERROR),
    ):
        call = Call(call_id=EVIL + name, integration=EVIL, api="chat.completions", agent=EVIL, url=EVIL)
        call.request, call.response, call.outcome = _json(request), _json(response), outcome
        call.error.CopyFrom(Error(type=EVIL, message=EVIL))
        script.write(1, call=call)
    script.write(1, call=Call(call_id="other", api=EVIL, outcome=Outcome.OUTCOME_OK))
    for outcome in (Outcome.OUTCOME_OK, Outcome.OUTCOME_ERROR):
        tool = ToolCall(tool_call_id=EVIL, name=EVIL, agent=EVIL, outcome=outcome)
        tool.arguments, tool.result = _json({EVIL: EVIL}), _json([EVIL])
        tool.error.CopyFrom(Error(type=EVIL, message=EVIL))
        script.write(2, tool_call=tool)
    reward = Reward(reward_id=EVIL, bound=Reward.Bound.BOUND_SCOPE, call_id=EVIL + "ok")
    reward.components.add(name=EVIL, value=1)
    reward.components.add(name=EVIL + "2", value=1)
    script.write(3, reward=reward)
    script.write(3, note=Note(values=_json({EVIL: EVIL})))
    script.write(4, scope_end=ScopeEnd(outcome=Outcome.OUTCOME_ERROR, error=Error(type=EVIL, message=EVIL)))
    script.write(4, rollout_end=RolloutEnd(outcome=Outcome.OUTCOME_ERROR, error=Error(message=EVIL)))
    writer.close()


def obeyed(text: str) -> set[str]:
    """The characters in `text` that a terminal obeys, colours apart."""
    plain = COLOUR.sub("", text)
    return {each for each in plain if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp")} - {"\n"}


COMMANDS = [
    ["rollouts"],
    ["show", "--last"],
    ["show", "--last", "--full"],
    ["show", ROLLOUT],
    ["show", "\x1b"],
    ["show", "\x1b[31mnone"],
    ["explain", ROLLOUT],
    ["explain", EVIL],
    ["reward", ROLLOUT, "1", "--name", "\x1b[31m", "--id", "\x1b[2J"],
    ["stats"],
    ["stats", "--run", EVIL],
    ["rollouts", "--task", EVIL],
    ["rollouts", "--home", EVIL],
    ["rollouts", "--endpoint", f"grpc://{EVIL}"],
    ["export", "--out", "hostile.jsonl"],
    ["export", "--set", EVIL],
    ["export", "--backend", EVIL],
    ["doctor"],
    [EVIL],
]


@pytest.mark.parametrize("width", ["30", "80", "300"])
@pytest.mark.parametrize("coloured", [False, True])
def test_nothing_that_a_command_prints_acts_on_the_terminal(
    coloured: bool,
    width: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", width)
    if coloured:
        monkeypatch.setenv("FORCE_COLOR", "1")
    write_hostile_rollout(Home.locate().spool)
    for arguments in COMMANDS if width == "80" else COMMANDS[:3]:
        assert main(arguments) in (0, 2), arguments
        out, err = capsys.readouterr()
        assert not obeyed(out + PROGRESS.sub("", err)), arguments
        assert coloured or "\x1b" not in out + err


def test_it_is_shown_as_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    write_hostile_rollout(Home.locate().spool)
    shown = r"a\x1b[2J\x1b]0;t\x07\x08\u202e\x9b31m\x1b]8;;http://x\x1b" + "\\"
    for arguments in (["rollouts"], ["show", "--last"], ["show", "--last", "--full"], ["stats"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert shown in out
        assert "[red]m[/red][link=x]:boom:" in out


def test_names_of_files_in_the_spool_are_text_too(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    spool = Home.locate().spool
    write_hostile_rollout(spool)
    for name in ("\x1b[31m\x07.seg", "a\nb.seg", "\x9b.seg.damaged", "\u202e.seg"):
        (spool / name).write_bytes(b"junk")
    for arguments in (["rollouts"], ["show", "--last"], ["stats"], ["doctor"]):
        main(arguments)
        out, err = capsys.readouterr()
        assert not obeyed(out + PROGRESS.sub("", err)), arguments


def test_what_was_forgotten_is_made_safe_where_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    console.show(Text("a\x1b[2J"), "[red]b\x9b[/red]\x85c")
    assert capsys.readouterr().out == "a\\x1b[2J\n[red]b\\x9b[/red]\\x85c\n"


def test_log_lines_and_tracebacks_are_text_too() -> None:
    code = (
        "import logging, sys, click\n"
        "from lightning_sdk.cli import main\n"
        "@click.command()\n"
        "def probe():\n"
        "    logging.getLogger('x').warning('%s', 'w\\x1b[2J')\n"
        "    raise RuntimeError('t\\x1b[2J')\n"
        "module = type(sys)('probe'); module.command = probe\n"
        "sys.modules['lightning_sdk.cli.probe'] = module\n"
        "main.COMMANDS['probe'] = ''\n"
        "sys.exit(main.main(['probe']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("lsdk: w\\x1b[2J\nTraceback")
    assert done.stderr.endswith("RuntimeError: t\\x1b[2J\n")
    assert not obeyed(done.stderr)
    assert logging.root.handlers  # pytest's own: in this process none was added
