"""`lsdk serve` as a process: it says where it listens, records what it samples, and ends when told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from openai import OpenAI

from lightning_sdk.client.segments import SegmentReader, list_segments
from lightning_sdk.errors import ConfigError
from lightning_sdk.home import Home
from lightning_sdk.policy.options import ServeOptions
from lightning_sdk.policy.publisher import HttpPublisher
from lightning_sdk.policy.server import serve
from lightning_sdk.records import Tokens, parse_record, unpack_float32, unpack_int32
from support.tiny_model import save_tiny_model
from support.waiting import wait_until

needs_torch = pytest.mark.model
LSDK = [sys.executable, "-m", "lightning_sdk", "serve"]
USER: Any = {"role": "user", "content": "hi"}


@contextmanager
def _serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command's process and the URL of its ready line."""
    process = subprocess.Popen(
        [*LSDK, *arguments, "--port", "0", "--threads", "1", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("serving "), line + process.stderr.read()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LSDK, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def _recorded(home: Path) -> list[Tokens]:
    frames = [frame for path in list_segments(home / "spool") for frame in SegmentReader(path).read()]
    return [parse_record(frame.record).tokens for frame in frames]


@needs_torch
def test_what_was_sampled_is_in_the_spool_and_sigterm_lets_a_running_answer_finish(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the [torch] extra")
    model = save_tiny_model(tmp_path / "tiny")
    home = tmp_path / "elsewhere"
    with _serving(str(model), "--name", "tiny", "--home", str(home)) as (process, url):
        client = OpenAI(base_url=url, api_key="unused", max_retries=0)
        answer: Any = client.chat.completions.create(
            model="tiny",
            messages=[USER],
            max_tokens=12,
            logprobs=True,
            extra_body={"return_token_ids": True},
            extra_headers={"x-lightning-call-id": "ca_42"},
        )
        (tokens,) = _recorded(home)
        assert (tokens.call_id, tokens.response_id, tokens.policy) == ("ca_42", answer.id, "tiny")
        assert list(unpack_int32(tokens.prompt_token_ids)) == answer.prompt_token_ids
        assert list(unpack_int32(tokens.choices[0].token_ids)) == answer.choices[0].token_ids
        told = [entry.logprob for entry in answer.choices[0].logprobs.content]
        assert list(unpack_float32(tokens.choices[0].logprobs)) == pytest.approx(told, abs=1e-6)

        stream = client.chat.completions.create(model="tiny", messages=[USER], max_tokens=300, stream=True)
        next(stream)
        process.send_signal(signal.SIGTERM)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] in ("length", "stop")
        assert process.wait(30) == 0
    assert len(_recorded(home)) == 2


@needs_torch
def test_a_client_of_the_real_endpoint_that_disconnects_frees_its_places(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the [torch] extra")
    import json
    import urllib.request

    model = save_tiny_model(tmp_path / "tiny")
    with _serving(str(model), "--max-batch", "2") as (_, url):
        client = OpenAI(base_url=url, api_key="unused", max_retries=0)
        stream = client.chat.completions.create(
            model="tiny", messages=[USER], max_tokens=450, n=16, stream=True
        )
        next(stream)
        stream.close()

        def idle() -> bool:
            with urllib.request.urlopen(url.removesuffix("/v1") + "/health") as response:
                health = json.load(response)
            return bool(health["running"] == health["waiting"] == 0)

        wait_until(idle)


@needs_torch
def test_each_policy_gets_its_own_weights_while_it_serves(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the [torch] extra")
    models = [save_tiny_model(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    weights, home = tmp_path / "weights", tmp_path / "home"
    arguments = ["--policy", f"writer={models[0]}", "--policy", f"critic={models[0]}", "--home", str(home)]
    arguments += ["--admin-token", "open", "--weights-dir", str(weights)]
    with _serving(*arguments) as (_, url):
        client = OpenAI(base_url=url, api_key="unused", max_retries=0)

        def answer(policy: str) -> str:
            told = client.chat.completions.create(model=policy, messages=[USER], max_tokens=20, temperature=0)
            return told.choices[0].message.content or ""

        before = answer("writer")
        assert answer("critic") == before
        HttpPublisher(url, "open", weights).publish("critic", models[1], version=1)
        assert answer("writer") == before
        assert answer("critic") != before
    versions = [(tokens.policy, tokens.policy_version) for tokens in _recorded(home)]
    assert versions == [("writer", 0), ("critic", 0), ("writer", 0), ("critic", 1)]


@needs_torch
def test_requests_that_break_off_or_are_no_http_leave_no_traceback(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the [torch] extra")
    json_type, text_type = "content-type: application/json\r\n", "content-type: text/plain\r\n"
    with _serving(str(save_tiny_model(tmp_path / "tiny"))) as (process, url):
        address = urlsplit(url)
        for kind in (json_type, text_type, ""):
            for rest in (
                "content-length: 100000\r\n\r\n{",
                "content-length: 100000000000\r\n\r\n{",
                "transfer-encoding: chunked\r\n\r\nZZ\r\n",
                "transfer-encoding: chunked\r\n\r\n1\r\n{\r\nZZ\r\n",
                "content-length: 1\r\n\r\n{\r\n\r\nno http",
            ):
                with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
                    connection.sendall(
                        f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{kind}{rest}".encode()
                    )
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
        client = OpenAI(base_url=url, api_key="unused", max_retries=0)
        assert client.chat.completions.create(model="tiny", messages=[USER], max_tokens=1).choices
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["no-such-directory"], "no directory"),
        (["."], "no config.json"),
        ([], "give MODEL"),
        (["--name", "a"], "--name names MODEL"),
        (["--policy", "a"], "NAME=DIRECTORY"),
        ([".", "--upstream", "b=http://x"], "'b', which is not served"),
        ([".", "--upstream", "vllm:8000"], "no URL"),
        (["--policy", "a=x", "--policy", "a=y"], "two policies have one name"),
        ([".", "--admin-token", "s"], "--weights-dir"),
        ([".", "--admin-token", "s", "--token", "s"], "every agent could publish"),
        ([".", "--host", "0.0.0.0"], "--token"),
        ([".", "--host", "0.0.0.0", "--token", ""], "it is empty"),
        ([".", "--endpoint", "http://x"], "grpc://"),
    ],
)
def test_what_cannot_be_served_is_one_sentence_and_exit_code_2(
    arguments: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = _run(*arguments)
    assert done.returncode == 2
    assert what in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_settings_of_the_client_are_none_of_its_business(tmp_path: Path) -> None:
    # It gets as far as looking for the model.
    done = _run(
        str(tmp_path), LIGHTNING_INTEGRATIONS="nonsense", LIGHTNING_POLICY_ENDPOINT="x", LIGHTNING_PROJECT=" "
    )
    assert (done.returncode, "no config.json" in done.stderr) == (2, True), done.stderr


def test_a_wrong_option_is_a_usage_error() -> None:
    done = _run(".", "--max-batch", "0")
    assert done.returncode == 2
    assert "--max-batch" in done.stderr


def test_help_has_an_example_and_needs_no_torch() -> None:
    done = _run("--help", PYTHONSAFEPATH="1")
    assert done.returncode == 0
    assert "lsdk serve ./SmolLM2-135M-Instruct" in done.stdout


def test_a_port_that_is_taken_is_said_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = ServeOptions(policies={"tiny": tmp_path}, port=port)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            serve(options, Home.locate(), on_ready=lambda url: None)


def test_without_torch_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("lightning_sdk.policy.server.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"agent-lightning-sdk\[torch\]"):
        serve(ServeOptions(policies={"tiny": tmp_path}, port=0), Home.locate(), on_ready=lambda url: None)


def test_the_endpoint_without_its_engine_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, lightning_sdk.policy.server, lightning_sdk.cli.serve; "
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
