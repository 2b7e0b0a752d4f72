"""What the calculator example counts as right, and which tasks it makes."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "calculator"


@pytest.fixture(scope="module")
def agent() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE / "agent.py"))


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("<tool>calc(12+7)", 19),
        (" <tool>calc((6*15)-30)", 60),
        ("<tool>calc(90/4)", 22.5),
        ("12+7", None),
        ("<tool>calc(12+)", None),
        ("<tool>calc(1/0)", None),
        ("<tool>calc(__import__('os'))", None),
        ("<tool>calc(9**9**9)", None),
        ("The answer is <tool>calc(12+7)", None),
    ],
)
def test_a_reply_is_worth_what_its_call_gives(agent: dict[str, Any], reply: str, value: float | None) -> None:
    assert agent["worked_out"](reply) == value


def test_no_held_out_question_is_trained_on_and_each_kind_is_there_as_often(tmp_path: Path) -> None:
    write_tasks = runpy.run_path(str(EXAMPLE / "tasks.py"))["write_tasks"]
    train, held_out = write_tasks(tmp_path, train=100, held_out=50, seed=0)
    rows = {path: [json.loads(line) for line in path.read_text().splitlines()] for path in (train, held_out)}
    assert not {row["question"] for row in rows[train]} & {row["question"] for row in rows[held_out]}
    kinds = [row["kind"] for row in rows[held_out]]
    assert {kinds.count(kind) for kind in kinds} == {10}
    again = write_tasks(tmp_path / "other", train=100, held_out=50, seed=1)[1]
    assert again.read_text() == held_out.read_text()
