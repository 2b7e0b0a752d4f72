"""When and how the process gets its configuration.

1. Decorating before init, init before decorating, and no init at all record alike.
2. An explicit init replaces an implicit one; scopes that are open go on in the new producer.
3. A second explicit init with other values warns and is ignored; with equal values it is nothing.
4. Every option is also a variable; a value that cannot be used is refused with what would work.
"""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import lightning_sdk as ls
from lightning_sdk.client import faults, runtime
from lightning_sdk.client.config import load_config
from lightning_sdk.client.runtime import active
from lightning_sdk.errors import ConfigError
from support.client_records import bodies, make_call, of_kind, read_spool


@ls.trace_agent
def decorated_before() -> None:
    make_call()


def test_decorating_before_init_init_before_decorating_and_no_init_record_alike(tmp_path: Path) -> None:
    decorated_before()
    ls.shutdown()
    ls.init(home=tmp_path / "explicit")

    @ls.trace_agent
    def decorated_after() -> None:
        make_call()

    decorated_after()
    decorated_before()
    ls.shutdown()
    one = ["join", "rollout_start", "scope_start", "call", "scope_end", "rollout_end", "leave"]
    assert bodies(read_spool(tmp_path / "home" / "spool")) == one
    assert bodies(read_spool(tmp_path / "explicit" / "spool")) == one * 2


def test_nothing_is_made_on_disk_before_something_is_recorded(tmp_path: Path) -> None:
    ls.init(project="p")
    assert ls.flush(0.1)
    assert not (tmp_path / "home").exists()
    decorated_before()
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "home" / ".gitignore").read_text() == "*\n"


def test_reward_and_rollout_start_it_too(tmp_path: Path) -> None:
    with ls.rollout():
        ls.emit_reward(1)
    assert bodies(read_spool(tmp_path / "home" / "spool")) == [
        "join",
        "rollout_start",
        "reward",
        "rollout_end",
        "leave",
    ]


def test_an_explicit_init_replaces_an_implicit_one_and_open_scopes_go_on(tmp_path: Path) -> None:
    with ls.rollout() as run:
        decorated_before()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ls.init(home=tmp_path / "new", project="mine")
        decorated_before()
    old, new = read_spool(tmp_path / "home" / "spool"), read_spool(tmp_path / "new" / "spool")
    assert bodies(old) == ["join", "rollout_start", "scope_start", "call", "scope_end", "leave"]
    assert bodies(new) == ["join", "scope_start", "call", "scope_end", "rollout_end", "leave"]
    assert {sourced.record.rollout_id for sourced in old + new} == {run.rollout_id}
    assert [record.leave.count for record in of_kind(old + new, "leave")] == [6, 6]
    join = of_kind(new, "join")[0].join
    assert join.parent_producer == old[0].producer
    assert join.parent_order == of_kind(old, "leave")[0].order
    assert old[0].producer != new[0].producer


def test_a_second_explicit_init_with_other_values_warns_and_is_ignored(tmp_path: Path) -> None:
    ls.init(project="first")
    with pytest.warns(RuntimeWarning, match="other values of project, split") as caught:
        ls.init(project="second", split="train")
    assert caught[0].filename == __file__
    with ls.rollout():
        pass
    assert (
        of_kind(read_spool(tmp_path / "home" / "spool"), "rollout_start")[0].rollout_start.project == "first"
    )


def test_a_second_init_with_equal_values_is_nothing(tmp_path: Path) -> None:
    decorated_before()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ls.init()
        ls.init()
    decorated_before()
    records = read_spool(tmp_path / "home" / "spool")
    assert len({sourced.producer for sourced in records}) == 1
    assert len({record.rollout_start.run_id for record in of_kind(records, "rollout_start")}) == 1


def test_after_shutdown_other_values_are_welcome(tmp_path: Path) -> None:
    ls.init(project="first")
    assert ls.shutdown()
    assert ls.shutdown()
    ls.init(project="second")
    with ls.rollout():
        pass
    assert (
        of_kind(read_spool(tmp_path / "home" / "spool"), "rollout_start")[0].rollout_start.project == "second"
    )


def test_what_is_open_at_shutdown_writes_nothing_more_and_is_counted(tmp_path: Path) -> None:
    before = faults.counters().get("records_after_shutdown", 0)
    with ls.rollout():
        ls.shutdown()
    assert bodies(read_spool(tmp_path / "home" / "spool")) == ["join", "rollout_start"]
    assert faults.counters()["records_after_shutdown"] == before + 1


def test_each_init_is_a_run_of_its_own_unless_one_is_named(tmp_path: Path) -> None:
    runs = []
    for options in ({}, {}, {"run_id": "mine"}):
        ls.init(**options)  # type: ignore[arg-type]
        with ls.rollout():
            current = ls.current_rollout()
            assert current is not None
            runs.append(current.run_id)
        ls.shutdown()
    assert runs[0] != runs[1]
    assert runs[2] == "mine"


def test_every_option_is_also_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "ENDPOINT": "grpc://127.0.0.1:4319",
        "PROJECT": "p",
        "HOME": str(tmp_path / "h"),
        "SPOOL_DIR": str(tmp_path / "s"),
        "INTEGRATIONS": "openai",
        "TOKEN": "t",
        "POLICY_ENDPOINT": "http://127.0.0.1:8000/v1",
        "RUN_ID": "r",
        "SPLIT": "train",
    }.items():
        monkeypatch.setenv(f"LIGHTNING_{name}", value)
    config = load_config()
    assert (config.endpoint, config.project, config.token) == ("grpc://127.0.0.1:4319", "p", "t")
    assert (config.home.path, config.home.spool) == (tmp_path / "h", tmp_path / "s")
    assert (config.integrations, config.run_id, config.split) == (("openai",), "r", "train")
    assert config.policy_endpoint == "http://127.0.0.1:8000/v1"
    assert "'t'" not in repr(config)
    given = load_config(endpoint="", project="q", integrations=(), policy_endpoint="")
    assert (given.endpoint, given.project, given.integrations, given.policy_endpoint) == ("", "q", (), "")


def test_paths_become_absolute_at_init(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LIGHTNING_HOME")
    monkeypatch.chdir(tmp_path)
    config = load_config(spool_dir="spool")
    monkeypatch.chdir("/")
    assert (config.home.path, config.home.spool) == (tmp_path / ".lightning", tmp_path / "spool")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint": "http://h:1"}, "grpc://host:port"),
        ({"endpoint": "grpc://h"}, "grpc://host:port"),
        ({"endpoint": "grpc://h:0"}, "grpc://host:port"),
        ({"endpoint": "grpc://h:70000"}, "grpc://host:port"),
        ({"endpoint": "grpc://h:1/path"}, "grpc://host:port"),
        ({"endpoint": "h:1"}, "grpc://host:port"),
        ({"policy_endpoint": "grpc://h:1"}, "base URL of the endpoint"),
        ({"policy_endpoint": "http://h/v1?x=1"}, "base URL of the endpoint"),
        ({"project": ""}, "project='' is empty"),
        ({"project": 3}, "project=3 is a int"),
        ({"run_id": " "}, "run_id=' ' is empty"),
        ({"spool_dir": ""}, "spool_dir='' is empty"),
        ({"home": 3}, "expected a path"),
        ({"integrations": "openai"}, "expected a list of names"),
        ({"integrations": ["nothing"]}, "'nothing', which nothing provides: installed are .*openai"),
        ({"redact": "x"}, "cannot be called"),
        ({"project": "\ud800"}, "UTF-8"),
        ({"run_id": "x" * 257}, "257 characters"),
        ({"split": "\ud800"}, "UTF-8"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ls.init(**options)


def test_a_password_in_an_endpoint_is_not_repeated_in_the_message() -> None:
    for options in ({"endpoint": "grpc://me:hush@h:1"}, {"policy_endpoint": "http://me:hush@h/v1"}):
        with pytest.raises(ConfigError) as caught:
            load_config(**options)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("ENDPOINT", "localhost:4319", "records stay in "),
        ("ENDPOINT", "grpc://me:hush@h:1", "records stay in "),
        ("INTEGRATIONS", "opnai", "all that are found are installed"),
        ("TOKEN", " hush ", "no token is sent"),
        ("POLICY_ENDPOINT", "127.0.0.1:8000", "no request carries a call id"),
        ("PROJECT", "x" * 300, 'the project is "default"'),
        ("RUN_ID", "\udcff", "the run gets a fresh id"),
        ("SPLIT", "y" * 300, "rollouts are of no split"),
    ],
)
def test_a_variable_that_cannot_be_used_is_ignored_in_a_program_that_never_called_init_and_that_is_told_once(
    variable: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(f"LIGHTNING_{variable}", value)
    faults._logged.clear()
    decorated_before()
    ls.shutdown()
    decorated_before()
    ls.emit_reward(1)
    (message,) = caplog.records
    assert told in message.getMessage()
    assert "it is ignored" in message.getMessage()
    assert "hush" not in message.getMessage()
    assert message.exc_info is None
    ls.shutdown()
    records = read_spool(Path(os.environ["LIGHTNING_HOME"]) / "spool")
    assert len(of_kind(records, "rollout_start")) == 2
    # The user can see it in the store, too.
    assert [record.counters.values["settings_ignored"] for record in of_kind(records, "counters")] == [1, 1]
    # Whoever calls init() is told at once.
    with pytest.raises(ConfigError):
        ls.init()


def test_several_wrong_variables_are_each_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "nonsense")
    monkeypatch.setenv("LIGHTNING_INTEGRATIONS", "opnai,openai")
    monkeypatch.setenv("LIGHTNING_PROJECT", "kept")
    faults._logged.clear()
    decorated_before()
    assert len(caplog.records) == 2
    (start,) = of_kind(read_spool(Path(os.environ["LIGHTNING_HOME"]) / "spool"), "rollout_start")
    assert start.rollout_start.project == "kept"


def test_a_spool_that_cannot_be_written_does_not_harm_the_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    ls.init(home=tmp_path / "file")
    monkeypatch.setenv("LIGHTNING_STRICT", "0")
    before = faults.counters().get("error.journal", 0)
    decorated_before()
    assert faults.counters()["error.journal"] > before
    monkeypatch.setenv("LIGHTNING_STRICT", "1")
    with pytest.raises(OSError):
        decorated_before()
    assert active() is not None
    monkeypatch.setenv("LIGHTNING_STRICT", "0")
    ls.shutdown()


def test_a_thread_that_waits_for_integrations_in_vain_goes_on_and_that_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "_READY_TIMEOUT_S", 0.0)
    made: list[runtime.Runtime] = []
    thread = threading.Thread(target=lambda: made.append(runtime.Runtime(load_config(), explicit=True)))
    thread.start()
    thread.join()
    before = faults.counters().get("integrations_late", 0)
    made[0].wait_ready()
    made[0].wait_ready()
    assert faults.counters()["integrations_late"] == before + 1


def test_an_option_that_does_not_exist_is_a_mistake_in_the_code() -> None:
    with pytest.raises(TypeError, match="there is no option projekt"):
        load_config(projekt="p")
