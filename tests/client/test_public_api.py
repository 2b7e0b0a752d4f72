"""The public API: its names, its cost, and that it drags in nothing.

1. `__all__` is exactly the documented names, and each is there.
2. Importing loads no framework, no numeric library, no gRPC and no OpenTelemetry.
3. A type checker sees a decorated callable as what it was.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lightning_sdk
from support.client_records import run_program

DOCUMENTED = {
    "annotate",
    "current_rollout",
    "emit_reward",
    "extract",
    "flush",
    "init",
    "inject",
    "last_call",
    "rollout",
    "shutdown",
    "trace_agent",
    "trace_tool",
    "truncate",
}
HEAVY = (
    "openai",
    "torch",
    "transformers",
    "numpy",
    "langchain",
    "fastapi",
    "grpc",
    "opentelemetry",
    "asyncio",
)


def test_the_public_names_are_the_documented_ones() -> None:
    assert set(lightning_sdk.__all__) == DOCUMENTED
    assert all(callable(getattr(lightning_sdk, name)) for name in DOCUMENTED)


def test_importing_loads_nothing_heavy() -> None:
    code = f"import sys, lightning_sdk; print([m for m in {HEAVY!r} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_tracing_without_an_endpoint_loads_no_grpc_and_no_opentelemetry(tmp_path: Path) -> None:
    code = (
        "import sys, lightning_sdk as ls\n"
        "@ls.trace_agent\n"
        "def solve(): ls.emit_reward(1)\n"
        "solve()\n"
        "print([m for m in ('grpc', 'opentelemetry', 'numpy', 'openai') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_a_type_checker_sees_the_same_types(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api", reason="needs mypy")
    source = tmp_path / "usage.py"
    source.write_text(
        "from collections.abc import AsyncIterator, Iterator\n"
        "import lightning_sdk as ls\n"
        "@ls.trace_agent\n"
        "def bare(task: str, *, n: int = 1) -> int: return n\n"
        "@ls.trace_agent(name='named')\n"
        "async def named(task: str) -> list[int]: return []\n"
        "@ls.trace_agent('positional')\n"
        "def stream(task: str) -> Iterator[str]: yield task\n"
        "class Team:\n"
        "    @ls.trace_tool\n"
        "    async def items(self) -> AsyncIterator[int]: yield 1\n"
        "    @ls.trace_agent\n"
        "    @classmethod\n"
        "    def make(cls, size: int) -> str: return ''\n"
        "reveal_type(bare)\nreveal_type(named)\nreveal_type(stream)\n"
        "reveal_type(Team().items)\nreveal_type(Team.make(1))\n"
        "bare(1)\n"
    )
    out, _, code = api.run(
        ["--strict", "--no-incremental", "--cache-dir", str(tmp_path / "cache"), str(source)]
    )
    assert code == 1
    revealed = [
        line.partition('Revealed type is "')[2].rstrip('"') for line in out.splitlines() if "note:" in line
    ]
    assert [text.replace("builtins.", "") for text in revealed] == [
        "def (task: str, *, n: int =) -> int",
        "def (task: str) -> typing.Coroutine[Any, Any, list[int]]",
        "def (task: str) -> typing.Iterator[str]",
        "def () -> typing.AsyncIterator[int]",
        "str",
    ]
    errors = [line for line in out.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert "[arg-type]" in errors[0]


def test_the_testing_module_is_there_after_a_plain_import_and_costs_nothing_until_then(
    tmp_path: Path,
) -> None:
    code = """
import sys
import lightning_sdk as ls
assert "lightning_sdk.testing" not in sys.modules
assert not hasattr(ls, "nothing_of_this_name")
with ls.testing.capture() as cap, ls.rollout():
    pass
print(len(cap.episodes()))
"""
    ran = run_program(code, tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")
