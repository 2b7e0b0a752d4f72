"""The whole way, each part in a process of its own: an agent, then `lsdk`, with and without a collector.

1. What an agent recorded without any server is listed, shown, summed up and exported by `lsdk` afterwards.
2. With `lsdk collect` running, records arrive there, and every reading command gives the same through it.
3. `lsdk collect` prints one line when it is ready, and ends with 0 when it is told to.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightning_sdk.cli.main import main
from support.cli_rollouts import rollout_id, write_rollout
from support.fake_openai import FakeOpenAI, Reply, ToolCall

AGENT = """
import json, openai, lightning_sdk as ls

client = openai.OpenAI(api_key="sk-test-key-that-must-not-be-kept", max_retries=0)

def ask(messages):
    return client.chat.completions.create(model="tiny", messages=messages).choices[0].message

@ls.trace_tool
def calculate(expression):
    return {"12 * 7": 84}[expression]

@ls.trace_agent
def critic(answer):
    return ask([{"role": "user", "content": f"Is {answer} right?"}])

@ls.trace_agent
def solve(question):
    messages = [{"role": "user", "content": question}]
    reply = ask(messages)
    call = reply.tool_calls[0]
    result = calculate(**json.loads(call.function.arguments))
    messages.append(reply.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    answer = ask(messages).content
    critic(answer)
    ls.emit_reward({"correct": 1.0, "brevity": -0.25})
    return answer

with ls.rollout(task_id="math-17", metadata={"difficulty": "hard"}):
    assert solve("What is 12 * 7?") == "84"
assert ls.flush(30)
"""

REPLIES = [
    Reply(None, tool_calls=[ToolCall("calculate", '{"expression": "12 * 7"}')]),
    Reply("84"),
    Reply("yes"),
]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "100", "TZ": "UTC", "NO_PROXY": "127.0.0.1", **changes}


def run_agent(base_url: str, **changes: str) -> None:
    env = environment(OPENAI_BASE_URL=base_url, **changes)
    result = subprocess.run(
        [sys.executable, "-c", AGENT], env=env, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr


def lsdk(*arguments: str, told: str = "", **changes: str) -> str:
    """The output of a command that works and says `told` on stderr, or nothing."""
    result = subprocess.run(
        [sys.executable, "-m", "lightning_sdk", *arguments],
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert told in result.stderr if told else result.stderr == ""
    return result.stdout


@contextmanager
def collector(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `lsdk collect` and its endpoint."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_sdk", "collect", "--port", "0", *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        ready = process.stdout.readline()
        assert ready.startswith("collecting at grpc://127.0.0.1:"), process.stderr.read()
        yield process, ready.split()[2]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.fixture
def home() -> Path:
    return Path(os.environ["LIGHTNING_HOME"])


def assert_the_agents_rollout_is_listed(**changes: str) -> None:
    [row] = json.loads(lsdk("rollouts", "--json", **changes))
    facts = ("agent", "task_id", "outcome", "calls", "tool_calls", "rewards", "return", "complete")
    assert [row[fact] for fact in facts] == ["solve", "math-17", "succeeded", 3, 1, 1, 0.75, True]


def assert_the_agents_rollout_is_there(tmp_path: Path, **changes: str) -> None:
    assert_the_agents_rollout_is_listed(**changes)
    assert without_ids_and_times(lsdk("show", "--last", **changes)) == [
        "rollout ID  succeeded  TIME",
        "task math-17  project default  run ID  started THEN",
        'metadata {"difficulty": "hard"}',
        "└── solve  TIME",
        "    ├── #0 tiny  4 → 1 tokens  tool_calls  TIME",
        "    │     user: What is 12 * 7?",
        '    │     calls: calculate({"expression": "12 * 7"})',
        '    ├── tool calculate(expression="12 * 7")  TIME',
        "    │     result: 84",
        "    ├── #1 tiny  4 → 2 tokens  stop  TIME",
        "    │     tool: 84",
        "    │     reply: 84",
        "    └── critic  TIME",
        "        └── #2 tiny  4 → 2 tokens  stop  TIME",
        "              user: Is 84 right?",
        "              reply: yes",
        "              reward +0.75 (correct 1, brevity -0.25)  bound by scope in solve",
        "",
        "3 calls · 1 tool · 12 → 5 tokens · return 0.75 · succeeded · complete",
        "text only: no_token_ids 3",
    ]
    sums = json.loads(lsdk("stats", "--json", **changes))
    assert sums["calls"]["by_agent"] == {"solve": 2, "critic": 1}
    assert sums["transitions"]["text_only"] == 3

    out = tmp_path / "train.jsonl"
    lsdk("export", "--out", str(out), **changes)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["agent"], line["reward"], line["return_to_go"]) for line in lines] == [
        ("solve", 0.0, 0.75),
        ("solve", 0.0, 0.75),
        ("critic", 0.75, 0.75),
    ]
    assert lines[0]["metadata"] == {"difficulty": "hard"}


def without_ids_and_times(shown: str) -> list[str]:
    shown = re.sub(r"(ro_)?[0-9a-f]{32}|(?<=run )[0-9a-f]{8}", "ID", shown)
    shown = re.sub(r"<1ms|\b\d+ms|\b\d+\.\d\ds", "TIME", shown)
    return re.sub(r"started .*", "started THEN", shown).splitlines()


def test_without_a_server(tmp_path: Path, home: Path) -> None:
    with FakeOpenAI(REPLIES) as server:
        run_agent(server.base_url)
    assert len(list((home / "spool").glob("*.seg"))) == 1
    assert_the_agents_rollout_is_there(tmp_path)
    assert list((home / "spool").glob("*.seg")) == []
    for path in home.rglob("*"):
        assert path.is_dir() or b"sk-test-key" not in path.read_bytes(), path


def test_with_a_collector(tmp_path: Path, home: Path) -> None:
    with collector() as (process, endpoint), FakeOpenAI(REPLIES) as server:
        run_agent(server.base_url, LIGHTNING_ENDPOINT=endpoint, LIGHTNING_HOME=str(tmp_path / "agent"))
        # From elsewhere, by its address.
        elsewhere = {"LIGHTNING_ENDPOINT": endpoint, "LIGHTNING_HOME": str(tmp_path / "elsewhere")}
        assert_the_agents_rollout_is_there(tmp_path, **elsewhere)
        # Beside it, where it owns the store.
        assert_the_agents_rollout_is_listed()
        checks = {each["name"]: each for each in json.loads(lsdk("doctor", "--json"))}
        assert checks["collector"]["detail"] == f"runs at {endpoint}, process {process.pid}"

        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert not (home / "collector.json").exists()
    # And afterwards straight from the store.
    assert_the_agents_rollout_is_listed()


def test_an_interrupted_collector_ends_quietly() -> None:
    with collector() as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_token_is_asked_for() -> None:
    with collector("--token", "secret") as (_, endpoint):
        rows = lsdk(
            "stats", "--json", "--endpoint", endpoint, LIGHTNING_TOKEN="secret", told="no rollouts yet"
        )
        assert json.loads(rows)["rollouts"]["by_outcome"] == {}
        result = subprocess.run(
            [sys.executable, "-m", "lightning_sdk", "rollouts", "--endpoint", endpoint],
            env=environment(),
            capture_output=True,
            text=True,
        )
    assert (result.returncode, result.stdout) == (2, "")
    assert "token" in result.stderr
    assert "secret" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_second_collector_is_one_sentence(home: Path, tmp_path: Path) -> None:
    with collector() as (_, endpoint):
        for other_home, port in ((home, "0"), (tmp_path / "other", endpoint.rpartition(":")[2])):
            result = subprocess.run(
                [sys.executable, "-m", "lightning_sdk", "collect", "--port", port, "--home", str(other_home)],
                env=environment(),
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert (result.returncode, result.stdout) == (2, "")
            assert result.stderr.startswith("lsdk: ")
            assert result.stderr.count("\n") == 1, result.stderr


def test_what_lies_in_the_spool_is_read_through_the_collector_that_owns_the_store(home: Path) -> None:
    with collector():
        write_rollout(home / "spool", 1)
        [row] = json.loads(lsdk("rollouts", "--json"))
    assert row["rollout_id"] == rollout_id(1)


@pytest.mark.parametrize("arguments", [["rollouts"], ["export", "--out", "train.jsonl"]])
def test_a_disk_that_is_full_loses_nothing(arguments: list[str], home: Path, tmp_path: Path) -> None:
    for number in range(20):
        write_rollout(home / "spool", number)
    waiting = sorted((home / "spool").glob("*.seg"))
    # No file may grow beyond this: enough for the schema of the store, too little for the records.
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)); "
        "from lightning_sdk.cli.main import main; sys.exit(main())"
    )
    result = subprocess.run(
        [sys.executable, "-c", limited, *arguments],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert result.stderr.startswith("lsdk: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert sorted((home / "spool").glob("*.seg")) == waiting
    assert not (tmp_path / "train.jsonl").exists()

    assert len(json.loads(lsdk("rollouts", "--json"))) == 20


def test_a_spool_that_was_moved_is_read_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path / "elsewhere"))
    program = "import lightning_sdk as ls\nls.trace_agent(lambda: None)()"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert list((tmp_path / "elsewhere").glob("*.seg"))
    assert main(["rollouts", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
