"""`lsdk explain`: why a token gets the gradient that it gets, in words and numbers.

1. The whole way, from the rewards as emitted to the weight of a token; every number can be checked by hand.
2. A call is explained alone; a call that is not trained says why.
3. The example in docs/credit.md is what the command prints.
4. --json has every number; what cannot be found or read is one sentence.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lightning_sdk._proto.read_pb2 import RolloutQuery
from lightning_sdk.client.ends import write_end
from lightning_sdk.client.producer import Producer
from lightning_sdk.collector.store.sqlite_read import SqliteReader
from lightning_sdk.home import Home
from support.cli_rollouts import write_rollout
from support.explained_group import AIR, explained_id, write_group
from support.lsdk import refused, run

STATES = """\
def name(transition):
    return len(transition.prompt_token_ids or ())

def worth(table):
    return [3.0] * table.calls

def nothing(table, values):
    return values
"""
DOCS = Path(__file__).parents[2] / "docs" / "credit.md"


@pytest.fixture(autouse=True)
def _group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    Path("air.toml").write_text(AIR)
    Path("states.py").write_text(STATES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "states", raising=False)
    write_group(Home.locate().spool)


# Return: -0.2 + 1 and AIR's -0.1: 0.7. The others' entries are 0 and 1, mean 0.5: advantage 0.2. R = 3 (d has no
# reward), N = 4 + 3: a token weighs 1/21 = 0.04762, and pulls with 0.2/21 = 0.009524.
WHOLE = """\
rollout ro_000aeeeeeeeeeeeeeeeeeeeeeeeeeeee  succeeded
in a group of 4 rollouts of task capital

REWARDS, as emitted
  +0.5 (reward)  replaced by a later one with the id judge
  -0.2 (brevity)  to #1, which was named
  +1 (correct 1, style 0)  to #2, the last call of the scope solver by then

AIR, rewards from what was observed
  -0.1 (air.tool_error) to #0: tool search raised TimeoutError: 5 s

RETURN
  -0.2 + 1 - 0.1 = 0.7

CREDIT
  broadcast: every call is worth the return of its rollout

BASELINE
  rloo: the mean of the other rollouts' entries
  solver:
    000aeeee  0.7  this one
    000beeee  0
    000ceeee  1
    mean of others = (0 + 1) / 2 = 0.5
  critic, alone in this group, against all agents:
    000aeeee  0.7  this one
    000beeee  0
    000ceeee  1
    mean of others = (0 + 1) / 2 = 0.5
  left out: 000deeee, no_reward (its rollout got no reward, and none is not 0)

CALLS
  #0 solver, ca_a0
    credit 0.7 - baseline 0.5 = advantage +0.2
    trained: 4 tokens, tokens 5 to 8 of the 14 in sequence 0 of the rollout
    each: weight 0.04762 x advantage +0.2 = 0.009524
  #1 solver, ca_a1
    credit 0.7 - baseline 0.5 = advantage +0.2
    trained: 3 tokens, tokens 11 to 13 of the 14 in sequence 0 of the rollout
    each: weight 0.04762 x advantage +0.2 = 0.009524
  #2 critic, ca_a2
    credit 0.7 - baseline 0.5 = advantage +0.2
    not trained: no_token_ids (no engine told the token ids)

LOSS
  with this group as one update: R = 3 rollouts with a trained token; N = 7
  trained tokens of this one; weight of a token 1/R x 1/N = 1/3 x 1/7 = 0.04762
"""

# Credits of the solver: 0 (#0) and -0.2 (#1), so its entry is -0.1. Entries -0.1, 0 and 1: mean 0.3, deviations
# -0.4, -0.3 and 0.7, squares 0.16 + 0.09 + 0.49 = 0.74, / 2 = 0.37, root 0.6083. (-0.2 - 0.3) / 0.6083 = -0.822.
ONE_CALL = """\
rollout ro_000aeeeeeeeeeeeeeeeeeeeeeeeeeeee  succeeded
in a group of 4 rollouts of task capital

REWARDS, as emitted
  +0.5 (reward)  replaced by a later one with the id judge
  -0.2 (brevity)  to #1, which was named
  +1 (correct 1, style 0)  to #2, the last call of the scope solver by then

RETURN
  -0.2 + 1 = 0.8

CREDIT
  per_call: a call is worth its own reward

BASELINE
  grpo: the mean of all rollouts' entries, over their standard deviation; ddof
  1, epsilon 1e-06
  solver:
    000aeeee  -0.1  this one, the mean of 0 (#0), -0.2 (#1)
    000beeee  0
    000ceeee  1
    mean of all = ((-0.1) + 0 + 1) / 3 = 0.3; divisor 0.6083
  left out: 000deeee, no_reward (its rollout got no reward, and none is not 0)

CALLS
  #1 solver, ca_a1
    credit -0.2 = -0.2 (its own reward)
    (credit -0.2 - baseline 0.3) / 0.6083 = advantage -0.822
    trained: 3 tokens, tokens 11 to 13 of the 14 in sequence 0 of the rollout
    each: weight 0.04762 x advantage -0.822 = -0.03914

LOSS
  with this group as one update: R = 3 rollouts with a trained token; N = 7
  trained tokens of this one; weight of a token 1/R x 1/N = 1/3 x 1/7 = 0.04762
"""


def test_a_rollout_is_explained_from_its_rewards_to_its_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "explain", "000a", "--air", "air.toml") == WHOLE
    assert all(len(line) <= 80 for line in WHOLE.splitlines())


@pytest.mark.parametrize("target", [["000a", "--call", "1"], ["000a", "--call", "ca_a1"], ["ca_a1"], ["a1"]])
def test_a_call_is_explained_alone(target: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "explain", *target, "--credit", "per_call", "--baseline", "grpo") == ONE_CALL


def test_the_example_in_the_documentation_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = re.findall(r"^```console\n\$ lsdk (explain [^\n]*)\n(.*?)^```", DOCS.read_text(), re.M | re.S)
    assert run(capsys, *block[0].split()) == block[1]


def test_a_rollout_without_a_reward_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "explain", "000d") == (
        f"rollout {explained_id('d')}  succeeded\n"
        "in a group of 4 rollouts of task capital\n"
        "\n"
        "REWARDS, as emitted\n"
        "  none\n"
        "\n"
        "RETURN\n"
        "  none: no reward was emitted, which is not a reward of 0\n"
        "\n"
        "CREDIT\n"
        "  broadcast: every call is worth the return of its rollout\n"
        "\n"
        "BASELINE\n"
        "  rloo: the mean of the other rollouts' entries\n"
        "  left out: this one, no_reward (its rollout got no reward, and none is not 0)\n"
        "\n"
        "CALLS\n"
        "  #0 solver, ca_d0\n"
        "    not trained: no_reward (its rollout got no reward, and none is not 0)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--agents", "critic"],
            "not trained: unselected_agent (another agent than those that are selected)",
        ),
        (["--baseline", "none"], "credit 0 - baseline 0 = advantage 0"),
        # (0.8 + 0 + 1) / 3 = 0.6; over that mean: -1.
        (["--baseline", "max_rl"], "(credit 0 - baseline 0.6) / 0.6 = advantage -1"),
        (["--baseline", "dr_grpo"], "1/R = 0.3333, over the constant length that the trainer sets"),
        (["--baseline", "dr_grpo", "--constant-length", "10"], "1/R x 1/L = 1/3 x 1/10 = 0.03333"),
        (["--baseline", "mean", "--baseline-param", "by=group"], "all agents: 000aeeee 0.8"),
        # 7 tokens of 0.8, 2 of 0 and 3 of 1: mean 8.6 / 12.
        (
            ["--baseline", "reinforce++", "--agents", "solver"],
            "000aeeee 7 tokens of 0.8 000beeee 2 tokens of 0 000ceeee 3 tokens of 1 mean of the 12 tokens = 0.7167",
        ),
        (["--baseline", "reinforce++", "--agents", "solver"], "as if this group were all of it"),
        # The solver's entries are 0.8, 0 and 1, less their mean 0.6.
        (
            ["--baseline", "reinforce++_baseline", "--agents", "solver"],
            "mean of all = (0.8 + 0 + 1) / 3 = 0.6 tokens: 000aeeee 7 tokens of 0.2",
        ),
        (
            ["--credit", "discounted", "--credit-param", "gamma=0.5"],
            "mean of others = (0.225 + 1) / 2 = 0.6125",
        ),
        (
            ["--credit", "gigpo", "--state-key", "states:name"],
            "gigpo: the rollout's return against its group's, and the call's against those from the same state",
        ),
        (
            ["--credit", "states:worth", "--baseline", "states:nothing"],
            "credit 3 - baseline 0 = advantage +3",
        ),
        (["--models", "other*"], "not trained: other_model"),
        (["--policies", "main"], "not trained: other_model"),
        (["--max-tokens", "4"], "not trained: over_length (prompt and response are longer than asked for)"),
        (["--min-policy-version", "3"], "not trained: policy_too_old"),
        (
            ["--credit", "discounted", "--credit-param", "gamma=0.5"],
            "discounted: a call is worth its own reward and all later ones; gamma 0.5",
        ),
        (
            ["--baseline", "grpo", "--baseline-param", "ddof=0"],
            "over their standard deviation; ddof 0, epsilon 1e-06",
        ),
        (
            ["--credit", "gigpo", "--state-key", "states:name"],
            "gamma 0.95, weight 1, normalise false, ddof 1",
        ),
        (["--credit", "per_call"], "credit 0 = 0 (its own reward) credit 0 - baseline"),
        (["--credit", "discounted"], "discounted: a call is worth its own reward and all later ones"),
        (["--credit", "broadcast_scope"], "a call is worth the rewards of its scope and of those around it"),
    ],
)
def test_other_ways_are_explained_too(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in " ".join(run(capsys, "explain", "000b", *arguments).split())


def test_a_rollout_alone_has_nothing_to_be_compared_with(capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(Home.locate().spool, 1)
    out = run(capsys, "explain", "0001")
    assert "in a group of 1 rollout of task math-17\n" in out
    assert (
        "  solve:\n"
        "    0001eeee  1  this one\n"
        "    lone (no other rollout that counts to compare with)\n"
        "\n"
        "CALLS\n"
        "  #0 solve, ca_1_0\n"
        "    credit 1 - baseline 1 = advantage 0\n"
        "    not trained: no_token_ids (no engine told the token ids)\n"
    ) in out


def test_json_has_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    told: dict[str, Any] = json.loads(run(capsys, "explain", "000a", "--air", "air.toml", "--json"))
    assert (told["rollout_id"], told["group_id"], told["rollouts"]) == (explained_id("a"), "the group", 4)
    assert told["return"] == 0.7
    assert told["left_out"] == {explained_id("d"): "no_reward"}
    assert [(each["component"], each["value"], each["call_id"]) for each in told["air"]] == [
        ("air.tool_error", -0.1, "ca_a0")
    ]
    assert [each["reason"] for each in told["calls"]] == [None, None, "no_token_ids"]
    first = told["calls"][0]
    assert (first["credit"], first["baseline"], first["scale"]) == (0.7, 0.5, 1.0)
    assert first["comparison"]["entries"] == [
        [explained_id("a"), 0.7],
        [explained_id("b"), 0.0],
        [explained_id("c"), 1.0],
    ]
    assert first["trained"] == {
        "tokens": 4,
        "row": 0,
        "first": 5,
        "row_length": 14,
        "rollouts": 3,
        "rollout_tokens": 7,
        "weight": pytest.approx(1 / 21),
        "constant_length": None,
    }


def test_a_failure_reward_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    spool = Home.locate().spool
    killed = write_rollout(spool, 1, reward=None, ended=False)
    with closing(Producer(spool)) as producer:
        write_end(
            producer,
            rollout_id=killed,
            attempt=1,
            group_id="group of math-17",
            run_id="nightly",
            project="default",
            outcome="truncated",
            truncation_reason="timeout",
        )
    out = run(capsys, "explain", "0001", "--failure-reward", "-1")
    assert out.startswith(f"rollout {killed}  truncated (timeout), incomplete\n")
    assert "RETURN\n  -1, the failure reward: it ended so, and no reward was emitted\n" in out


def test_calls_for_learning_from_text_are_taken_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "explain", "000a", "--call", "2", "--text", "--agents", "critic")
    assert "not trained" not in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--credit", "turn_gae"], "--credit turn_gae needs values that no record has"),
        (["--credit", "gigpo"], "give state_key="),
        (["--credit", "gigpo", "--baseline", "rloo", "--state-key", "states:name"], "leave the baseline out"),
        (["--credit", "brodcast"], "no credit is called 'brodcast'"),
        (["--state-key", "states:name"], "--state-key does nothing with --credit broadcast"),
        (["--credit-param", "gamma"], "'gamma' is no KEY=VALUE"),
        (["--credit-param", "gamma=1"], "credit 'broadcast' has no parameter 'gamma'"),
        (["--credit", "discounted", "--credit-param", "gamma=high"], "gamma='high'; give a number"),
        (["--credit", "gigpo", "--credit-param", "state_key=x:y"], "is given as --state-key"),
        (["--baseline-param", "by=group", "--baseline-param", "by=agent"], "by=… was given twice"),
        (["--baseline-param", "by=task"], "by is 'task'; give 'agent' or 'group'"),
        (["--baseline", "states:nowhere"], "--baseline states:nowhere cannot be imported"),
        (["--baseline", "nowhere:f"], "--baseline nowhere:f cannot be imported"),
        (["--constant-length", "5"], "constant_length=5 does nothing here"),
        (["--failure-reward", "nan"], "failure_reward is nan"),
        (["--agents", "a||b"], "is no name pattern"),
    ],
)
def test_what_cannot_be_learned_so_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in refused(capsys, "explain", "000a", *arguments)


def test_a_call_is_found_without_reading_other_rollouts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "rollouts")  # adopts the spool
    queries: list[RolloutQuery] = []
    read = SqliteReader.read_rollouts

    def noted(reader: SqliteReader, query: RolloutQuery) -> Any:
        queries.append(query)
        return read(reader, query)

    monkeypatch.setattr(SqliteReader, "read_rollouts", noted)
    run(capsys, "explain", "ca_b0")
    assert all(query.call_id_prefixes or query.rollout_id_prefixes for query in queries)


def test_what_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no id of a rollout or call begins with 'ca_zz'" in refused(capsys, "explain", "ca_zz")
    assert "has no call '9'" in refused(capsys, "explain", "000a", "--call", "9")
    assert "several calls" in refused(capsys, "explain", "000a", "--call", "ca_a")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("rules.toml", "[air", "the AIR rules of rules.toml cannot be read"),
        ("rules.json", "{", "the AIR rules of rules.json cannot be read"),
        ("rules.json", "[]", "rules.json has no table `air`"),
        ("rules.toml", "[tool_error]\nweight = 1", "rules.toml has no table `air`"),
        (
            "rules.toml",
            "[air.tool_error]\nweigth = 1",
            "has the key 'weigth'; tool_error takes weight, tools",
        ),
    ],
)
def test_rules_that_cannot_be_used_are_refused(
    name: str, text: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text(text)
    assert complaint in refused(capsys, "explain", "000a", "--air", name)


def test_rules_may_be_json(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.json").write_text('{"air": {"tool_error": {"weight": -0.1}}}')
    assert run(capsys, "explain", "000a", "--air", "rules.json") == WHOLE
