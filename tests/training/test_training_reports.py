"""What a run tells: numbers, a curve, samples.

1. Rewards are told by mean, component and agent, over rollouts that have one.
2. Rollouts that made no call, or called other models only, are counted.
3. The policy's age is by token; groups with a call that is too old are told by length.
4. The curve is a picture wherever it is drawn.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lightning_sdk.errors import ConfigError
from lightning_sdk.training import curve, metrics
from lightning_sdk.training.samples import as_text, write_samples
from lightning_sdk.training.sinks import Sinks, check_sinks
from support.training_episodes import episode, group, transition


def test_rewards_are_told_by_mean_component_and_agent() -> None:
    groups = [
        group(
            episode(
                transition(agent="writer", reward=0.5),
                transition(agent="critic", reward=0.25),
                components={"style": 0.5, "fact": 0.25},
            ),
            episode(transition(agent="writer", reward=1.0), components={"style": 0.0, "fact": 1.0}),
            episode(transition(agent="writer", reward=None), components=None),
        )
    ]
    told = metrics.reward_metrics(groups)
    assert told["reward/rollouts"] == 2
    assert told["reward/mean"] == pytest.approx(0.875)
    assert told["reward/component/style"] == pytest.approx(0.25)
    assert told["reward/component/fact"] == pytest.approx(0.625)
    assert told["reward/agent/writer"] == pytest.approx(0.75)
    assert told["reward/agent/critic"] == pytest.approx(0.25)


def test_no_reward_is_no_mean() -> None:
    assert metrics.reward_metrics([group(episode(components=None))]) == {"reward/rollouts": 0}


def test_groups_without_variance_are_told() -> None:
    one = {"reward": 1.0}
    groups = [
        group(episode(components=one), episode(components=one)),
        group(episode(components=one), episode(components={"reward": 0.0})),
    ]
    told = metrics.group_metrics(groups)
    assert told == {"groups/groups": 2, "groups/reward_std": 0.25, "groups/without_variance": 0.5}


def test_rollouts_that_called_nobody_or_somebody_else_are_counted() -> None:
    groups = [
        group(
            episode(transition(policy="mine", tokens=3), transition(policy="mine", tokens=2)),
            episode(transition(policy=None)),
            episode(replace(transition(policy=None), drop_reason="error")),
            episode(),
            replace(episode(), outcome="failed"),
        )
    ]
    told = metrics.rollout_metrics(groups, ["mine"])
    assert told["rollouts/succeeded"] == 4
    assert told["rollouts/failed"] == 1
    assert told["rollouts/other_model"] == 1, "a call that failed was nobody's"
    assert told["rollouts/without_call"] == 2
    assert told["calls/calls"] == 2
    assert told["calls/sampled_tokens"] == 5


def test_ages_are_by_token_and_old_groups_are_told_by_length() -> None:
    young = group(episode(transition(version=5, tokens=3)))
    old = group(episode(transition(version=2, tokens=1), transition(version=5, tokens=1)))
    told = metrics.age_metrics([young, old], {"mine": 5}, max_age=1)
    assert told["policy_age/mean"] == pytest.approx(3 / 5)
    assert told["policy_age/max"] == 3
    assert told["policy_age/groups_too_old/2_to_3_calls"] == 1


def test_the_curve_is_a_picture_of_training_and_validation(tmp_path: Path) -> None:
    rows = [{"kind": "round", "rounds_done": number, "reward/mean": number / 4} for number in (1, 2, 3)]
    rows += [
        {"kind": "validation", "rounds_done": 0, "reward/mean": 0.1},
        {"kind": "round", "rounds_done": 4},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = curve.draw(tmp_path / "metrics.jsonl", "run <1>")
    assert drawn[0] == tmp_path / "curve.svg"
    root = ElementTree.fromstring(drawn[0].read_text())
    lines = [each for each in root.iter() if each.tag.endswith("polyline")]
    assert [len(each.attrib["points"].split()) for each in lines] == [3, 1]
    assert "run <1>" in "".join(root.itertext())


def test_there_is_no_curve_before_the_first_point(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert curve.draw(tmp_path / "metrics.jsonl", "run") == []


def test_samples_can_be_read(tmp_path: Path) -> None:
    one = episode(transition(content="d", reward=1.0, prompt="which letter?"), components={"reward": 1.0})
    path = write_samples(tmp_path / "samples", 3, [group(one)], 4)
    assert path is not None
    assert path.read_text() == as_text(one)
    assert "user: which letter?" in path.read_text()
    assert "> assistant: d    [writer, mine v0, reward +1]" in path.read_text()


def test_a_sample_tells_a_conversation_once() -> None:
    first = transition(prompt="which letter?", content="hint")
    asked = [
        {"role": "user", "content": "which letter?"},
        {"role": "assistant", "content": "hint", "refusal": None},
        {"role": "user", "content": "it is d"},
    ]
    second = replace(transition(content="d"), observation={"messages": asked})
    told = [line.strip() for line in as_text(episode(first, second)).splitlines()[1:]]
    assert [line.partition("    ")[0] for line in told] == [
        "user: which letter?",
        "> assistant: hint",
        "user: it is d",
        "> assistant: d",
    ]


def test_no_number_that_json_has_not_is_in_the_metrics_file(tmp_path: Path) -> None:
    sinks = Sinks([], tmp_path / "metrics.jsonl", "run")
    sinks.write("round", 1, {"a": float("nan"), "b": 1.5})
    sinks.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "kind": "round",
        "rounds_done": 1,
        "a": None,
        "b": 1.5,
    }


def test_a_sink_that_is_not_installed_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="which needs wandb: pip install it"):
        check_sinks(["wandb"])


def test_a_sink_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def write(self, *_: object) -> None:
            raise OSError("the network is gone")

        def close(self) -> None:
            raise AssertionError("nothing more is said to it")

    sinks = Sinks([], tmp_path / "metrics.jsonl", "run")
    sinks._others["wandb"] = Broken()
    for rounds_done in (1, 2):
        sinks.write("round", rounds_done, {"a": 1.0})
    sinks.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert caplog.text.count("the network is gone") == 1
