"""Options: each is checked, and what would do nothing is refused with the reason."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from lightning_backends.torch_rl import TorchRLTrainer
from lightning_backends.torch_rl.options import Options
from lightning_sdk.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs" / "torch-rl.md"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lora_alpha": 8.0}, "lora_alpha does nothing without lora_rank"),
        ({"lora_targets": ["q_proj"]}, "lora_targets does nothing without lora_rank"),
        ({"state_key": "a:b"}, "state_key does nothing without credit gigpo or hgpo"),
        ({"credit": "gigpo"}, "give state_key='module:function'"),
        ({"credit": "precomputed"}, "takes its values from Python"),
        ({"credit_params": {"values": [1]}}, "credit_params.values cannot be given"),
        ({"loss": "gspo", "dual_clip": 3.0}, "dual_clip does nothing without loss ppo or dr_grpo"),
        ({"loss": "cispo", "dual_clip": 3.0}, "dual_clip does nothing"),
        ({"loss_length": 100}, "loss_length does nothing without loss dr_grpo"),
        ({"loss": "dr_grpo", "aggregation": "token"}, "has an aggregation of its own"),
        ({"loss": "dr_grpo", "baseline": "grpo"}, "goes with baseline dr_grpo, not grpo"),
        ({"loss": "dr_grpo", "credit": "turn_gae"}, "is an advantage already"),
        ({"baseline": "dr_grpo"}, "asks for a loss without length normaliser"),
        (
            {"correction": "icepop", "correction_cap": 2.0},
            "correction_cap does nothing without correction tis",
        ),
        ({"correction_low": 0.5}, "correction_low does nothing without correction icepop"),
        ({"correction_high": 2.0}, "correction_high does nothing without correction icepop"),
        ({"sequence_mask_low": 0.9}, "sequence_mask_low does nothing without sequence_mask"),
        ({"sequence_mask_high": 1.1}, "sequence_mask_high does nothing without sequence_mask"),
        ({"kl_estimator": "k2"}, "kl_estimator does nothing without kl_coefficient above 0"),
        ({"reference": "models/a"}, "reference does nothing without kl_coefficient above 0"),
        ({"value_coefficient": 0.5}, "value_coefficient does nothing without credit turn_gae"),
        ({"value_learning_rate": 1e-4}, "value_learning_rate does nothing without credit turn_gae"),
        ({"value_trains_trunk": True}, "value_trains_trunk does nothing without credit turn_gae"),
        ({"total_steps": 10}, "total_steps does nothing without schedule linear or cosine"),
        ({"final_learning_rate": 0.1}, "final_learning_rate does nothing without schedule"),
        ({"schedule": "cosine"}, "schedule cosine needs total_steps"),
        ({"schedule": "linear", "total_steps": 5, "warmup_steps": 5}, "warm up in fewer steps"),
        ({"pack": False}, "share_prefixes does nothing without pack"),
        (
            {"pack": False, "share_prefixes": False, "micro_batch_tokens": 8},
            "micro_batch_tokens does nothing",
        ),
    ],
)
def test_what_would_do_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        TorchRLTrainer(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"los": "ppo"}, "torch_rl has no option 'los'; did you mean loss?"),
        ({"zebra": 1}, "docs/torch-rl.md lists them"),
        ({"loss": "a2c"}, "loss is 'a2c'; expected 'ppo' or 'cispo' or 'gspo' or 'dr_grpo'"),
        ({"epochs": 1.5}, "epochs is 1.5; expected a whole number"),
        ({"epochs": True}, "epochs is True; expected a whole number"),
        ({"learning_rate": "1e-5x"}, "learning_rate is '1e-5x'; expected a number or nothing"),
        ({"pack": 1}, "pack is 1; expected true or false"),
        ({"lora_rank": 2, "lora_targets": "q_proj"}, "expected a list of names or nothing"),
        ({"credit_params": "gamma"}, "expected a table"),
        ({"lora_rank": 0}, "lora_rank is 0; give 1 or more"),
        ({"clip_high": 0.0}, "clip_high is 0.0; give more than 0"),
        ({"clip_low": 1.5}, "clip_low is 1.5; give more than 0, 1 at the most"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; give a finite number"),
        ({"lora_rank": 2, "lora_targets": []}, "lora_targets is empty"),
    ],
)
def test_a_wrong_value_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        TorchRLTrainer(**given)


def test_whole_numbers_are_numbers_and_lists_are_names() -> None:
    options = Options.from_mapping(
        {"learning_rate": 1, "lora_rank": 2, "lora_targets": ["q_proj"], "agents": None}
    )
    assert options.learning_rate == 1.0
    assert options.lora_targets == ("q_proj",)


def test_the_page_tells_every_option_and_no_other() -> None:
    told = []
    for table in DOCS.read_text().split("| option | default | |\n|---|---|---|\n")[1:]:
        told += re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], flags=re.MULTILINE)
    assert sorted(told) == sorted(each.name for each in dataclasses.fields(Options))


def test_loading_the_backend_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, lightning_backends.torch_rl; print({'torch', 'transformers'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
