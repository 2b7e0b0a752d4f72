"""An agent that answers a word problem by one call of a calculator. It was written for the openai package alone.

What training needs of it are the two lines with `ls`: a decorator, and the reward where it is known.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from openai import OpenAI

import lightning_sdk as ls

SHOTS = [
    ("Tom has 12 apples and buys 7 more. How many apples does Tom have?", "12+7"),
    ("There are 6 bags with 15 pens each. How many pens are there?", "6*15"),
]
MESSAGES: list[Any] = [{"role": "system", "content": "Write the calculator call that solves the problem."}]
for asked, expression in SHOTS:
    MESSAGES += [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": f"<tool>calc({expression})</tool>"},
    ]

_CALL = re.compile(r"\s*<tool>calc\(([^<]*)\)")
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@lru_cache(maxsize=1)
def client() -> OpenAI:
    """One client for the process: it keeps its connections."""
    return OpenAI(api_key="unused", max_retries=5)


def calculate(expression: str) -> float:
    """Work out `expression`: numbers, + - * / and parentheses. Anything else raises ValueError."""

    def value(node: ast.AST) -> float:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return float(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{expression!r} is no sum")

    return value(ast.parse(expression.strip(), mode="eval").body)


def worked_out(reply: str) -> float | None:
    """What the calculator gives for the call in a reply; None where there is no call, or none that it takes."""
    call = _CALL.match(reply)
    if call is None:
        return None
    try:
        return calculate(call[1])
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError, OverflowError):
        return None


@ls.trace_agent
def solve(task: dict[str, Any]) -> float | None:
    """Answer `task["question"]`. Being right is worth 1."""
    completion = client().chat.completions.create(
        model="gpt-4o-mini",
        messages=[*MESSAGES, {"role": "user", "content": task["question"]}],
        stop=["</tool>"],
        temperature=1,
        max_tokens=22,
    )
    answer = worked_out(completion.choices[0].message.content or "")
    ls.emit_reward(float(answer is not None and abs(answer - task["answer"]) < 1e-6))
    return answer
