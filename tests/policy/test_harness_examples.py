"""The programs of examples/harness, which know nothing of us: each run is a rollout with all of its tokens."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_sdk.mdp import Episode, assemble
from lightning_sdk.policy.harness import Harness
from lightning_sdk.records import SourcedRecord
from support.policy_fakes import MemoryWriter, scripted_policies, served

EXAMPLES = Path(__file__).parents[2] / "examples" / "harness"
CALL_TEXT = '<tool_call>{"name": "calculator", "arguments": {"expression": "64+16"}}</tool_call>'


def _episode(writer: MemoryWriter) -> Episode:
    (episode,) = assemble(
        SourcedRecord(b"p" * 16, place, record) for place, record in enumerate(writer.records, 1)
    )
    return episode


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_shell_script_with_curl() -> None:
    policies, _, writer = scripted_policies("It is 80.")
    with served(policies, harness=Harness(writer)) as url:
        command = ["sh", str(EXAMPLES / "agent.sh"), url.removesuffix("/v1")]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    episode = _episode(writer)
    assert (episode.return_, episode.outcome, episode.complete) == (1.0, "succeeded", True)
    assert len(episode.transitions) == 1


def test_a_node_program_with_the_openai_package(tmp_path: Path) -> None:
    modules = os.environ.get("NODE_PATH")
    if shutil.which("node") is None or not modules:
        pytest.skip(reason="needs node, and NODE_PATH: a node_modules with openai (nox -s frameworks)")
    shutil.copy(EXAMPLES / "agent.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(modules)
    policies, engine, writer = scripted_policies(CALL_TEXT, "It is 80.")
    with served(policies, harness=Harness(writer)) as url:
        command = ["node", "agent.mjs", url.removesuffix("/v1"), "64+16"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "It is 80.\n"), ran.stderr
    episode = _episode(writer)
    assert (episode.return_, episode.outcome, episode.complete) == (1.0, "succeeded", True)
    assert (episode.task_id, episode.split) == ("64+16", "train")
    first, second = episode.transitions
    assert {first.fidelity, second.fidelity} == {"engine"}
    assert engine.prompts[1].startswith(engine.prompts[0] + CALL_TEXT)
    # Prompt and answer of the first call are the beginning of the second's prompt, token by token.
    assert second.parent_call_id == first.call_id
