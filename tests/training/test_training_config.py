"""Settings come from a file, tables and overrides, in this order of strength; what is wrong is told in a sentence.

1. An unknown table or key is refused, with the nearest that there is.
2. A value that cannot be used is refused, with what is expected and what the key means.
3. `-o table.key=value` is TOML, or else text.
4. Paths in a file are meant from its directory.
5. Agents lead to policies that there are, and every policy has agents.
6. Every key is in docs/training.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_sdk.errors import ConfigError, PluginError
from lightning_sdk.training.config import check, keys_of, load_settings, table_names
from lightning_sdk.training.trainers import find_trainer, make_trainer


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("learning.rouns=5", "[learning] has no key 'rouns': did you mean 'rounds'?"),
        ("lerning.rounds=5", "there is no table [lerning]: did you mean 'learning'?"),
        (
            "learning.rounds=0",
            "learning.rounds = 0 cannot be used: input should be greater than or equal to 1",
        ),
        ("learning.rounds=1.5", "learning.rounds = 1.5 cannot be used: input should be a valid integer"),
        ("learning.temperature=hot", "(At which training rollouts are sampled"),
        ("validation.sampling='greedy'", "input should be 'agent' or 'training'"),
        ("report.sinks=['paper']", "input should be 'tensorboard', 'wandb' or 'mlflow'"),
        ("rounds=5", "-o rounds=5 is no setting: expected table.key=value"),
        ("learning.rounds", "-o learning.rounds is no setting"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(override: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(overrides=[override])
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_override_is_toml_or_else_text() -> None:
    overrides = [
        "backend.learning_rate=1e-5",
        "backend.loss=ppo",
        "backend.layers=[1, 2]",
        "backend.lora='yes'",
    ]
    options = load_settings(overrides=overrides).backend.options
    assert options == {"learning_rate": 1e-5, "loss": "ppo", "layers": [1, 2], "lora": "yes"}


def test_overrides_are_stronger_than_tables_and_tables_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text("[learning]\nrounds = 1\ntasks_per_round = 1\nrollouts_per_task = 1\n")
    settings = load_settings(
        file, ["learning.rounds=3"], {"learning": {"rounds": 2, "tasks_per_round": 2, "shuffle": None}}
    )
    learning = settings.learning
    assert (learning.rounds, learning.tasks_per_round, learning.rollouts_per_task) == (3, 2, 1)
    assert learning.shuffle is True


def test_paths_in_a_file_are_meant_from_its_directory(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text('[run]\ntasks = "tasks.jsonl"\n[policies]\na = "models/a"\n[agents]\n"*" = "a"\n')
    settings = load_settings(file)
    assert settings.run.tasks == str(tmp_path / "tasks.jsonl")
    assert settings.policies == {"a": tmp_path / "models" / "a"}


def test_a_data_set_of_a_hub_stays_a_name(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text('[run]\ntasks = "owner/sums"\n')
    assert load_settings(file).run.tasks == "owner/sums"


@pytest.mark.parametrize("text", ["rounds = 5", "[learning\nrounds = 5"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "train.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"stands outside any table|is no TOML"):
        load_settings(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
        load_settings(tmp_path / "none.toml")


def test_all_agents_go_to_the_one_policy_where_nobody_says_otherwise() -> None:
    assert check({"policies": {"only": "x"}}).agents == {"*": "only"}


@pytest.mark.parametrize(
    ("agents", "told"),
    [
        ({"writer": "plan"}, "names no policy: did you mean 'planner'?"),
        ({"writer": "planner"}, "no agent's calls go to policy 'judge'"),
        ({"writer|": "planner", "*": "judge"}, "is no name pattern"),
        ({}, "no agent's calls go to policy 'planner'"),
    ],
)
def test_agents_lead_to_policies_and_every_policy_has_agents(agents: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=r"policy|pattern") as refused:
        check({"policies": {"planner": "a", "judge": "b"}, "agents": agents})
    assert told in str(refused.value)


@pytest.mark.parametrize("name", ["../elsewhere", "org/model", ".", "", "two words", "50%", "größe"])
def test_the_name_of_a_policy_can_be_a_directory_and_stand_in_a_header(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a policy's name: use letters"):
        check({"policies": {name: "a"}})


def test_an_exporter_is_refused_as_a_trainer_with_what_to_do_instead() -> None:
    with pytest.raises(
        ConfigError, match=r"'jsonl' does not train: .*`lsdk run`.*`lsdk export --backend jsonl`"
    ):
        find_trainer("jsonl")


def test_a_backend_that_there_is_not_is_refused() -> None:
    with pytest.raises(PluginError, match="no backend is called 'jsnol': did you mean 'jsonl'"):
        find_trainer("jsnol")


def test_an_option_that_the_trainer_has_not_is_refused_with_the_nearest() -> None:
    from support.bandit import BanditTrainer

    with pytest.raises(ConfigError, match="no option 'learning_rat': did you mean 'learning_rate'"):
        make_trainer("bandit", BanditTrainer, {"learning_rat": 1})


def test_every_key_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    for table in table_names():
        assert f"`[{table}]`" in text, f"docs/training.md has nothing about [{table}]"
        for key in keys_of(table):
            assert f"`{key}`" in text, f"docs/training.md has nothing about {table}.{key}"
