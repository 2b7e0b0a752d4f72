"""`lsdk rollouts`, `show` and `stats` on records in a real spool and store.

1. They adopt the spool, say what is there and exit with 0; an empty state directory is no error.
2. What a person sees is short; --json has everything.
3. An id may be shortened as far as it is unique, with or without "ro_".
4. Nothing that goes wrong shows a traceback or loses a record.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from lightning_sdk._proto.records_pb2 import Call, Counters, Join, Record, Reward, RolloutStart, ToolCall
from lightning_sdk.cli.main import main
from lightning_sdk.client.spool import SpoolWriter
from lightning_sdk.home import Home
from lightning_sdk.ids import new_producer
from support.cli_episodes import at
from support.cli_rollouts import Script, rollout_id, write_rollout
from support.lsdk import refused, run
from support.record_factory import Tape
from support.row_factory import talk


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setenv("COLUMNS", "100")


def test_rollouts_are_listed_newest_first(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 1)
    write_rollout(spool, 2, task_id="a task", calls=2, reward=None, ended=False)
    write_rollout(spool, 3, reward=-1 / 3)
    assert run(capsys, "rollouts") == (
        "rollout   agent  task     outcome    calls  tools  rewards   return  started      took\n"
        "0003eeee  solve  math-17  succeeded      1      1        1  -0.3333  2001-09-09  2.00s\n"
        "0002eeee  solve  a task   running        2      1        0        -  2001-09-09      -\n"
        "0001eeee  solve  math-17  succeeded      1      1        1        1  2001-09-09  2.00s\n"
    )


def test_in_a_narrow_terminal_only_agent_and_task_are_cut(
    spool: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write_rollout(spool, 1, task_id="a-rather-long-task-identifier")
    assert run(capsys, "rollouts") == (
        "rollout  agent task        outcome   calls tools rewards return started     took\n"
        "0001eeee solve a-rather-l… succeeded     1     1       1      1 2001-09-09 2.00s\n"
    )


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ([], [4, 3, 2, 1]),
        (["--task", "b"], [3]),
        (["--run", "day"], [2]),
        (["--project", "other"], [4]),
        (["--limit", "2"], [4, 3]),
        (["--limit", "0"], [4, 3, 2, 1]),
    ],
)
def test_rollouts_can_be_chosen(
    options: list[str], numbers: list[int], spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1)
    write_rollout(spool, 2, run_id="day")
    write_rollout(spool, 3, task_id="b")
    write_rollout(spool, 4, project="other")
    rows = json.loads(run(capsys, "rollouts", "--json", *options))
    assert [row["rollout_id"] for row in rows] == [rollout_id(number) for number in numbers]


def test_a_listed_rollout_as_json(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 1, reward=None)
    assert json.loads(run(capsys, "rollouts", "--json")) == [
        {
            "rollout_id": rollout_id(1),
            "project": "default",
            "run_id": "nightly",
            "group_id": "group of math-17",
            "task_id": "math-17",
            "split": None,
            "attempt": 1,
            "agent": "solve",
            "outcome": "succeeded",
            "calls": 1,
            "tool_calls": 1,
            "rewards": 0,
            "return": None,
            "complete": True,
            "start_ns": at(1000),
            "end_ns": at(3000),
            "revision": 1,
        }
    ]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """The output of a command that works, and the line with which it says why there is nothing."""
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    return out, err


def test_an_empty_state_directory_is_no_error_and_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    home = Home.locate().path
    sentence = f"no rollouts yet in {home}: run a program that uses @trace_agent\n"
    assert told(capsys, "rollouts") == ("", sentence)
    assert told(capsys, "rollouts", "--json") == ("[]\n", sentence)
    out, err = told(capsys, "stats")
    assert "rollouts      0\n" in out
    assert err == sentence
    assert json.loads(told(capsys, "stats", "--json")[0])["store"]["counters"]["records"] == 0
    assert sentence.strip() in refused(capsys, "show", "--last")
    assert sentence.strip() in refused(capsys, "show", "ab")
    assert sentence.strip() in refused(capsys, "export", "--out", "never.jsonl")
    assert main(["doctor"]) == 0
    assert not home.exists()


def test_filters_that_nothing_matches_are_named(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 1)
    for command in ("rollouts", "stats"):
        assert told(capsys, command, "--project", "other", "--run", "day")[1] == (
            "no rollout matches --project 'other' --run 'day': `lsdk rollouts` alone lists what there is\n"
        )


@pytest.mark.parametrize(
    ("destination", "delivery"),
    [
        ("grpc://127.0.0.1:4319", "`lsdk collect` takes them in"),
        ("grpc://localhost:4320", "`lsdk collect --port 4320` takes them in"),
        (
            "grpc://10.0.0.1:4319",
            "once a collector runs there, the next program with this endpoint and state directory sends them",
        ),
        ("nonsense", "that is no endpoint"),
    ],
)
def test_an_empty_answer_names_the_records_that_wait_for_a_collector(
    destination: str, delivery: str, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1, destination=destination)
    sentence = f"9 records in {spool} wait for {destination}: {delivery}"
    for command in ("rollouts", "stats"):
        assert sentence in told(capsys, command)[1]
    for arguments in (["show", "--last"], ["show", "ab"], ["export", "--out", "never.jsonl"]):
        assert sentence in refused(capsys, *arguments)


def test_another_state_directory_is_named_in_what_delivers_its_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "elsewhere"
    write_rollout(home / "spool", 1, destination="grpc://127.0.0.1:4319")
    assert f"`lsdk collect --home {home}` takes them in" in told(capsys, "rollouts", "--home", str(home))[1]


def test_a_rollout_of_which_only_rewards_are_known_is_unknown_and_in_no_run(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = SpoolWriter(spool, new_producer(), destination="")
    script = Script(writer, "mistyped", "mistyped", 0)
    script.write(0, join=Join(pid=1, host="here"))
    reward = Reward(bound=Reward.Bound.BOUND_ROLLOUT)
    reward.components.add(name="", value=1)
    script.write(0, reward=reward)
    writer.close()
    write_rollout(spool, 1)
    rows = {row["rollout_id"]: row["outcome"] for row in json.loads(run(capsys, "rollouts", "--json"))}
    assert rows == {"mistyped": "unknown", rollout_id(1): "succeeded"}
    shown = run(capsys, "show", "mistyped")
    assert shown.startswith("rollout mistyped  unknown")
    assert "return 1 · unknown" in shown
    stats = run(capsys, "stats")
    assert "rollouts      2: succeeded 1, unknown 1\n" in stats
    assert "no model call" not in stats
    assert list(json.loads(run(capsys, "stats", "--json"))["complaints"]) == ["nightly"]


def test_home_is_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(tmp_path / "elsewhere" / "spool", 1)
    assert "0001eeee" in run(capsys, "rollouts", "--home", str(tmp_path / "elsewhere"))


def test_a_rollout_is_shown(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 1)
    expected = (
        f"rollout {rollout_id(1)}  succeeded  2.00s\n"
        "task math-17  project default  run nightly  started 2001-09-09 01:46:41\n"
        "└── solve  2.00s\n"
        "    ├── #0 tiny-model  30 → 5 tokens  stop  50ms\n"
        "    │     user: question 0\n"
        "    │     reply: answer 0\n"
        "    │     reward +1  bound by scope in solve\n"
        "    └── tool add(a=1)  4ms\n"
        "          result: 2\n"
        "\n"
        "1 call · 1 tool · 30 → 5 tokens · return 1 · succeeded · complete\n"
        "text only: no_token_ids 1\n"
    )
    for name in ("ro_0001", "0001", rollout_id(1)):
        assert run(capsys, "show", name) == expected
    assert run(capsys, "show", "--last") == expected


def test_a_failed_call_is_shown_with_its_error(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 1, failed_call=True)
    out = run(capsys, "show", "--last")
    assert "    ├── #0 tiny-model  50ms  3 attempts\n" in out
    assert "    │     error: openai.RateLimitError: slow down\n" in out
    assert "unusable: error 1\n" in out


def test_the_last_rollout_is_the_newest(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 2)
    write_rollout(spool, 1)
    assert run(capsys, "show", "--last").startswith(f"rollout {rollout_id(2)}")


def test_a_shown_rollout_as_json_is_the_whole_episode(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1, calls=2)
    episode = json.loads(run(capsys, "show", "--last", "--json"))
    assert episode["rollout_id"] == rollout_id(1)
    assert (episode["outcome"], episode["return"], episode["complete"]) == ("succeeded", 1.0, True)
    assert [each["reward"] for each in episode["transitions"]] == [0.0, 1.0]
    assert episode["transitions"][0]["schema_version"] == 1
    assert episode["transitions"][1]["action"]["message"]["content"] == "answer 1"
    assert [scope["agent"] for scope in episode["scopes"]] == ["solve"]
    assert [(tool["name"], tool["arguments"], tool["result"]) for tool in episode["tools"]] == [
        ("add", {"a": 1}, 2)
    ]
    assert [reward["bound"] for reward in episode["rewards"]] == ["scope"]


def test_an_id_that_fits_several_lists_them_and_one_that_fits_none_is_refused(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 13):
        write_rollout(spool, number)
    assert main(["show", "00"]) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0].split()[:3] == ["rollout", "agent", "task"]
    assert [line.split()[0] for line in lines[1:11]] == [f"{n:04x}eeee" for n in range(12, 2, -1)]
    assert lines[11:] == [
        "lsdk: 12 rollouts begin with '00', the newest 10 are these: give more of the id "
        "(see `lsdk show --help`)"
    ]
    assert main(["show", "000", "--json"]) == 2
    assert "12 rollouts begin with '000'" in capsys.readouterr().err
    assert refused(capsys, "show", "ffff") == (
        "lsdk: no rollout's id begins with 'ffff': `lsdk rollouts` lists them (see `lsdk show --help`)\n"
    )


def test_stats_sum_up_and_say_why_runs_are_of_no_use(
    spool: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rollout(spool, 1, calls=2)
    write_rollout(spool, 2, run_id="broken", failed_call=True, reward=None)
    write_rollout(spool, 3, run_id="silent", calls=0, ended=False, reward=0.5)
    write_rollout(spool, 4, destination="grpc://10.0.0.1:4319")
    monkeypatch.setenv("COLUMNS", "300")
    assert run(capsys, "stats").splitlines() == [
        "rollouts      3: succeeded 2, running 1; 1 incomplete",
        "transitions   3: text 3",
        "usable        0 by tokens; 2 more as text",
        "drop reasons  no_token_ids 2, error 1",
        "models        3: tiny-model 3",
        "agents        3: solve 3",
        "tools         3: add 3",
        "tokens        60 → 10; unknown for 1 call",
        "rewards       2 in 2 rollouts; mean return 0.75; 1 bound to no call",
        "spool         9 records in 1 segment wait for grpc://10.0.0.1:4319",
        f"store         {Home.locate().store}",
        "records       23, duplicates 0, integrity_errors 0, tombstones 0, producers 3, rollouts 3",
        "run nightly: can be used as text only, not by tokens: no_token_ids 2",
        "run broken: none of 1 transition can be used: error 1",
        "run silent: no model call was recorded in 1 rollout: "
        "`lsdk doctor` shows which libraries are watched",
    ]


def test_runs_with_the_same_fault_share_a_line_and_only_reasons_of_that_fault_are_named(
    spool: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for number in range(1, 6):
        write_rollout(spool, number, run_id=f"day {number}", calls=number)
    write_rollout(spool, 6, run_id="day 1", failed_call=True)
    write_rollout(spool, 7, run_id="broken", failed_call=True)
    write_rollout(spool, 8, run_id="silent", calls=0)
    write_rollout(spool, 9, run_id="mute", calls=0)
    lines = [line for line in run(capsys, "stats").splitlines() if line[:4] == "run " or " runs (" in line]
    assert lines == [
        "5 runs (day 1, day 2, day 3 and 2 more): can be used as text only, not by tokens: no_token_ids 15",
        "run broken: none of 1 transition can be used: error 1",
        "2 runs (silent, mute): no model call was recorded in 2 rollouts: `lsdk doctor` shows which libraries are "
        "watched",
    ]


@pytest.mark.parametrize(("temperature", "off", "is_told"), [(1.0, 0, False), (0, 2, True), (None, 1, False)])
def test_stats_tell_of_calls_that_no_trainer_takes(
    temperature: float | None, off: int, is_told: bool, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tape = Tape("a", rollout=rollout_id(1))
    tape.start()
    talk(tape, "one", ["q"], "cat", [1], [20, 99], temperature=temperature)
    talk(tape, "two", ["r"], "cat", [1], [20, 99], temperature=0 if temperature is None else temperature)
    tape.finish()
    writer = SpoolWriter(spool, tape.producer)
    for item in tape.records:
        writer.append(item.record.SerializeToString())
    writer.close()
    out = " ".join(run(capsys, "stats").split())
    assert f"2 by tokens{f' ({off} of them off_distribution)' if off else ''}; 0 more as text" in out
    assert (
        "run run_1: none of 2 transitions that can be used by tokens was sampled as the policy" in out
    ) is is_told
    told = json.loads(run(capsys, "stats", "--json"))
    assert told["transitions"]["off_distribution"] == off
    assert ("run_1" in told["complaints"]) is is_told


def test_stats_count_broken_chains_by_why(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tape = Tape("a", rollout=rollout_id(1))
    tape.start()
    talk(tape, "whole", ["q"], "cat", [1], [20, 21, 99])
    talk(tape, "goes_on", ["q", "cat", "more"], "dog", [1, 20, 21, 99, 3], [4, 99])
    talk(tape, "retokenised", ["q", "cat", "else"], "cow", [1, 22, 99, 3], [4, 99])
    talk(tape, "edited", ["r", "cat", "more"], "ant", [7, 20, 21, 99, 3], [4, 99])
    talk(tape, "edited_too", ["s", "cat", "more"], "bee", [8, 20, 21, 99, 3], [4, 99])
    tape.finish()
    writer = SpoolWriter(spool, tape.producer)
    for item in tape.records:
        writer.append(item.record.SerializeToString())
    writer.close()
    assert "broken chains  3: edited_history 2, retokenised 1\n" in run(capsys, "stats")
    told = json.loads(run(capsys, "stats", "--json"))["calls"]["broken_chains"]
    assert told == {"edited_history": 2, "retokenised": 1}


def test_stats_as_json(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 1)
    write_rollout(spool, 2, task_id="other", calls=3)
    sums = json.loads(run(capsys, "stats", "--task", "math-17", "--json"))
    assert sums["rollouts"] == {"by_outcome": {"succeeded": 1}, "incomplete": 0}
    assert sums["transitions"] == {
        "usable": 0,
        "off_distribution": 0,
        "text_only": 1,
        "by_fidelity": {"text": 1},
        "drop_reasons": {"no_token_ids": 1},
    }
    assert sums["calls"] == {
        "by_model": {"tiny-model": 1},
        "by_agent": {"solve": 1},
        "without_transition": {},
        "broken_chains": {},
        "prompt_tokens": 30,
        "response_tokens": 5,
        "without_token_counts": 0,
    }
    assert sums["rewards"]["mean_return"] == 1.0
    assert sums["spool"] == {"segments": {}, "records": {}, "damaged": {}}
    assert sums["store"]["counters"]["rollouts"] == 2


def test_what_clients_counted_is_told_beside_the_stores_own_counters(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for values in ({"calls_outside_rollout": 2, "error.rewards": 1}, {"calls_outside_rollout": 3}):
        writer = SpoolWriter(spool, new_producer(), destination="")
        writer.append(Record(counters=Counters(values=values)).SerializeToString())
        writer.close()
    outside = "outside any rollout, and so not recorded: 5 model calls; "
    out, err = told(capsys, "stats")
    assert "clients       error.rewards 1\n" in out
    assert outside in err
    assert outside in told(capsys, "rollouts")[1]
    write_rollout(spool, 1)
    out = run(capsys, "stats")
    assert outside in " ".join(out.split())
    assert "client." not in out
    counters = json.loads(run(capsys, "stats", "--json"))["store"]["counters"]
    assert (counters["client.calls_outside_rollout"], counters["client.error.rewards"]) == (5, 1)


def test_a_damaged_segment_is_told_and_the_others_are_read(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1)
    (spool / ("ab" * 16 + "-000000000001.seg")).write_bytes(b"no segment at all")
    out = run(capsys, "stats")
    assert "rollouts      1: succeeded 1\n" in out
    assert "1 damaged segment\n" in out
    assert "is no spool segment" in " ".join(out.split())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_spool_is_one_sentence(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(spool, 1)
    spool.chmod(0)
    try:
        assert f"the spool {spool} cannot be read: Permission denied" in refused(capsys, "rollouts")
    finally:
        spool.chmod(0o700)
    assert "0001eeee" in run(capsys, "rollouts")


def test_a_spool_that_is_a_file_is_one_sentence(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spool.parent.mkdir(parents=True)
    spool.write_text("")
    assert f"the spool {spool} cannot be read: Not a directory" in refused(capsys, "rollouts")


def test_a_state_directory_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    write_rollout(tmp_path / "spool", 1)
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path / "spool"))
    sentence = refused(capsys, "rollouts", "--home", str(tmp_path / "file" / "home"))
    assert f"the state directory {tmp_path / 'file' / 'home'} cannot be made (Not a directory)" in sentence


def test_a_store_that_is_none_is_one_sentence_and_keeps_the_spool(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(spool, 1)
    Home.locate().store.write_bytes(b"this is no database, whatever its name says" * 100)
    refused(capsys, "rollouts")
    assert len(list(spool.glob("*.seg"))) == 1


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "127.0.0.1:4319", "grpc://"])
def test_an_endpoint_that_is_none_is_one_sentence(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "grpc://host:port" in refused(capsys, "rollouts", "--endpoint", endpoint)


def test_an_endpoint_where_nobody_listens_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "grpc://127.0.0.1:1")
    assert "grpc://127.0.0.1:1" in refused(capsys, "rollouts")


def test_hostile_records_break_no_output(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = SpoolWriter(spool, new_producer())
    script = Script(writer, rollout_id(1), "group", 0)
    script.write(0, join=Join(pid=1))
    metadata = b'{"a": NaN, "b": "\\ud800"}'
    script.write(0, rollout_start=RolloutStart(project="p\x1b[2J", task_id="\u202eevil", metadata=metadata))
    for body in (b"NaN", b'{"x": [1e999]}', b"[" * 2000 + b"]" * 2000, b'"\\u001b[2J"', b"not json", b""):
        script.write(1, tool_call=ToolCall(name="\x1b[1m", arguments=body, result=body, outcome=1))
    for index, request in enumerate(
        (b'{"messages": "x", "model": 5}', b'{"messages": [5, null, {"role": 3}]}', b"")
    ):
        script.write(2, call=Call(call_id=f"ca_{index}", request=request, response=b"{}", outcome=1))
    reward = Reward(call_id="unknown")
    reward.components.add(name="\x1b", value=float("nan"))
    script.write(3, reward=reward)
    writer.close()

    for command in (["rollouts"], ["show", "--last"], ["show", "--last", "--full"], ["stats"]):
        assert "\x1b" not in run(capsys, *command)
    for command in (["rollouts"], ["show", "--last"], ["stats"]):
        json.loads(run(capsys, *command, "--json"))
