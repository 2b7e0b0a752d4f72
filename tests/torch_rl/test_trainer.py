"""The trainer as the loop drives it.

1. A round moves the weights that it says it trains, publishes them with a probe that holds, and raises the version.
2. Where nothing can be trained on, nothing is published and the version stays.
3. Each policy has weights and a version of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the [torch] extra")

from lightning_backends.torch_rl import TorchRLTrainer  # noqa: E402
from lightning_sdk.errors import ConfigError, PublishError, RunError  # noqa: E402
from lightning_sdk.mdp import Group  # noqa: E402
from lightning_sdk.mdp.advantages import compute_advantages  # noqa: E402
from lightning_sdk.mdp.sequences import build_rows  # noqa: E402
from lightning_sdk.plugins import Probe, Trainer  # noqa: E402
from support import credit_groups  # noqa: E402
from support.training import KeepingPublisher, make_groups, run_of, save_llama  # noqa: E402

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    directory = save_llama(tmp_path_factory.mktemp("llama"))
    (directory / "tokenizer.json").write_text("{}")
    return directory


def opened(tmp_path: Path, model: Path, publisher: Any, **options: Any) -> TorchRLTrainer:
    run = {key: options.pop(key) for key in ("policies", "max_tokens") if key in options}
    trainer = TorchRLTrainer(**{"learning_rate": 1e-3, **options})
    trainer.open(run_of(tmp_path / "run", model, publisher, **run))
    return trainer


def plain(model: Path) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(model).state_dict())


def moved(model: Path, weights: dict[str, Any]) -> set[str]:
    start = plain(model)
    assert start.keys() == weights.keys()
    return {name for name, value in weights.items() if not torch.equal(value, start[name])}


def test_it_is_a_trainer() -> None:
    assert isinstance(TorchRLTrainer(), Trainer)
    assert TorchRLTrainer.missing() is None
    assert TorchRLTrainer().endpoint is None


def test_a_round_moves_every_weight_and_publishes(tmp_path: Path, model: Path) -> None:
    publisher = KeepingPublisher()
    trainer = opened(tmp_path, model, publisher)
    report = trainer.consume(make_groups())
    assert publisher.published == [("tiny", 1)]
    assert report.policy_version == 1
    assert moved(model, publisher.weights["tiny"]) == set(plain(model))
    assert len(publisher.probes) == 1
    assert report.metrics["tokens_trained"] == 88
    assert report.metrics["steps"] == 1
    assert trainer.consume(make_groups(seed=1)).policy_version == 2
    # What was published is deleted again.
    assert list((tmp_path / "run" / "trainer" / "publish").iterdir()) == []
    trainer.close()


def gain(model: Path) -> float:
    """The mean of advantage times log probability over the trained tokens, by plain passes."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model)
    gains = []
    for row in build_rows(compute_advantages(make_groups())):
        ids = torch.from_numpy(row.token_ids_T).long()
        with torch.no_grad():
            logprobs = torch.log_softmax(network(ids[None]).logits[0, :-1], -1)
        told = logprobs[torch.arange(len(ids) - 1), ids[1:]]
        gains += (told * torch.from_numpy(row.advantages_T[1:]))[
            torch.from_numpy(row.loss_mask_T[1:])
        ].tolist()
    return sum(gains) / len(gains)


def test_what_was_rewarded_more_becomes_likelier(tmp_path: Path, model: Path) -> None:
    trainer = opened(tmp_path, model, KeepingPublisher())
    for _ in range(3):
        trainer.consume(make_groups())
    assert gain(trainer.export(tmp_path / "out")["tiny"]) > gain(model) + 0.1
    trainer.close()


def test_adapters_are_merged_into_what_is_published(tmp_path: Path, model: Path) -> None:
    pytest.importorskip("peft", reason="needs the [lora] extra")
    publisher = KeepingPublisher()
    trainer = opened(tmp_path, model, publisher, lora_rank=4, lora_targets=["q_proj", "up_proj"])
    trainer.consume(make_groups())
    changed = moved(model, publisher.weights["tiny"])
    assert changed == {name for name in plain(model) if "q_proj" in name or "up_proj" in name}
    exported = trainer.export(tmp_path / "out")
    assert (exported["tiny"] / "tokenizer.json").exists()
    assert moved(model, plain(exported["tiny"])) == changed
    trainer.close()


def test_every_way_to_train_makes_a_step(tmp_path: Path, model: Path) -> None:
    for options in (
        {"loss": "cispo"},
        {"loss": "gspo", "epochs": 2, "rollouts_per_update": 2},
        {"loss": "dr_grpo"},
        {"baseline": "grpo", "aggregation": "token", "entropy_coefficient": 0.01},
        {"kl_coefficient": 0.1, "kl_estimator": "k2"},
        {"credit": "turn_gae", "value_trains_trunk": True},
        {"credit": "discounted", "credit_params": {"gamma": 0.9}},
        {"credit": "gigpo", "state_key": "support.training:state_of"},
        {"precision": "bfloat16"},
        {"schedule": "cosine", "total_steps": 4, "warmup_steps": 1},
        {"weight_decay": 0.1, "max_grad_norm": 0.0},
    ):
        publisher = KeepingPublisher()
        trainer = opened(tmp_path, model, publisher, **options)
        report = trainer.consume(make_groups())
        assert publisher.published == [("tiny", 1)], options
        assert report.metrics["tokens_trained"] == 88, options
        trainer.close()


def test_several_steps_of_one_batch_use_the_log_probabilities_from_before_the_first(
    tmp_path: Path, model: Path
) -> None:
    trainer = opened(tmp_path, model, KeepingPublisher(), rollouts_per_update=3, epochs=2)
    metrics = trainer.consume(make_groups()).metrics
    assert metrics["steps"] == 4
    assert metrics["policy_ratio.most"] > 1.01
    trainer.close()


def test_adapters_off_are_the_reference(tmp_path: Path, model: Path) -> None:
    pytest.importorskip("peft", reason="needs the [lora] extra")
    trainer = opened(tmp_path, model, KeepingPublisher(), lora_rank=4, kl_coefficient=0.1)
    assert trainer.consume(make_groups()).metrics["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert trainer.consume(make_groups()).metrics["reference_kl"] > 1e-5
    trainer.close()


def test_the_value_head_learns_what_rollouts_return(tmp_path: Path, model: Path) -> None:
    trainer = opened(
        tmp_path, model, KeepingPublisher(), credit="turn_gae", value_learning_rate=0.05, learning_rate=1e-6
    )
    errors = [trainer.consume(make_groups()).metrics["value.error"] for _ in range(12)]
    assert errors[-1] < errors[0] / 4
    trainer.close()


def test_turn_gae_values_what_was_cut_and_leaves_out_what_it_cannot_value(
    tmp_path: Path, model: Path
) -> None:
    calls = [
        credit_groups.call(
            1.0, prompt_token_ids=[5, 6, 7], response_token_ids=[8, 9], response_logprobs=[-1, -1]
        )
    ]
    text = credit_groups.call(prompt_token_ids=None, fidelity="text", drop_reason="no_token_ids")
    group = credit_groups.group(
        credit_groups.rollout("cut", *calls, truncated=True, outcome="truncated"),
        credit_groups.rollout("told", *calls),
        credit_groups.rollout("unknown", *calls, text),
    )
    trainer = opened(tmp_path, model, KeepingPublisher(), credit="turn_gae")
    metrics = trainer.consume([group]).metrics
    assert metrics["rollouts_without_value"] == 1
    assert metrics["rollouts_trained"] == 2
    trainer.close()


@pytest.mark.parametrize(
    "groups",
    [
        [],
        [credit_groups.group(credit_groups.rollout("r", credit_groups.call(1.0)))],
        [credit_groups.group(*(credit_groups.rollout(f"r{at}", credit_groups.call(1.0)) for at in range(3)))],
    ],
    ids=["no group", "a group of one", "no variance"],
)
def test_where_nothing_can_be_trained_on_nothing_is_published(
    tmp_path: Path, model: Path, groups: list[Group]
) -> None:
    publisher = KeepingPublisher()
    trainer = opened(tmp_path, model, publisher)
    report = trainer.consume(groups)
    assert publisher.published == []
    assert report.policy_version == 0
    assert report.metrics["tokens_trained"] == 0
    trainer.close()


def test_dropped_transitions_have_their_reasons(tmp_path: Path, model: Path) -> None:
    groups = make_groups(rollouts=2, groups=1)
    groups.append(credit_groups.group(credit_groups.rollout("lone", credit_groups.call(1.0)), group_id="h"))
    trainer = opened(tmp_path, model, KeepingPublisher(), max_tokens=30)
    report = trainer.consume(groups)
    assert report.dropped["lone"] == 1
    assert report.dropped["over_length"] > 0
    trainer.close()


def test_what_is_too_old_is_dropped(tmp_path: Path, model: Path) -> None:
    trainer = opened(tmp_path, model, KeepingPublisher(), max_policy_age=1)
    assert trainer.consume(make_groups()).metrics["policy_age.most"] == 0
    assert trainer.consume(make_groups()).metrics["policy_age.most"] == 1
    report = trainer.consume(make_groups())
    assert report.metrics["tokens_trained"] == 0
    assert report.dropped == {"policy_too_old": 20}
    trainer.close()


def test_policies_learn_apart(tmp_path: Path, model: Path) -> None:
    publisher = KeepingPublisher()
    trainer = opened(tmp_path, model, publisher, policies=("writer", "critic"))
    report = trainer.consume(make_groups(policies=("writer", "critic")))
    assert sorted(publisher.published) == [("critic", 1), ("writer", 1)]
    assert moved(model, publisher.weights["writer"])
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(publisher.weights["writer"][name], publisher.weights["critic"][name])
    both = report.metrics["writer/tokens_trained"] + report.metrics["critic/tokens_trained"]
    assert report.metrics["tokens_trained"] == both
    # Only one of them is in these rollouts.
    report = trainer.consume(make_groups(policies=("writer",)))
    assert publisher.published[2:] == [("writer", 2)]
    assert report.policy_version == 2
    assert (report.metrics["policy_version.writer"], report.metrics["policy_version.critic"]) == (2, 1)
    trainer.close()


def test_a_gradient_that_is_no_number_makes_no_step(tmp_path: Path, model: Path) -> None:
    publisher = KeepingPublisher()
    trainer = opened(tmp_path, model, publisher, correction="none")
    learner = trainer._opened()
    parameter = next(iter(learner._policies["tiny"].trained().values()))
    hook = parameter.register_hook(lambda grad: grad * float("nan"))
    report = trainer.consume(make_groups())
    assert (report.metrics["steps"], report.metrics["steps_skipped"]) == (0, 1)
    assert publisher.published == []
    hook.remove()
    assert trainer.consume(make_groups()).policy_version == 1
    trainer.close()


class RefusingPublisher:
    def publish(self, policy: str, weights: Path, *, version: int, probe: Probe | None = None) -> None:
        raise PublishError("no")


def test_the_version_stays_where_the_endpoint_refuses(tmp_path: Path, model: Path) -> None:
    trainer = opened(tmp_path, model, RefusingPublisher())
    with pytest.raises(PublishError):
        trainer.consume(make_groups())
    assert trainer._opened()._policies["tiny"].version == 0
    trainer.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": ("a*",)}, "has one of"),
        ({"credit": "broadcst"}, "no credit is called 'broadcst'"),
        ({"baseline": "grppo"}, "no baseline is called 'grppo'"),
        ({"credit": "gigpo", "state_key": "nowhere:f"}, "state_key 'nowhere:f' cannot be imported"),
        ({"baseline": "support.training:VOCABULARY"}, "is a int; expected a function"),
        ({"loss": "dr_grpo", "max_tokens": None}, "give loss_length"),
        ({"lora_rank": 2, "lora_targets": ["nothing"]}, "no adapters can be added"),
        ({"kl_coefficient": 0.1, "reference": "/nonexistent"}, "its model does not load"),
        ({"device": "cuda"}, "torch sees no CUDA device"),
    ],
)
def test_what_cannot_be_trained_is_refused_when_it_opens(
    tmp_path: Path, model: Path, options: dict[str, Any], message: str
) -> None:
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip(reason="the refusal needs a machine without CUDA, and this one has it")
    if "lora_rank" in options:
        pytest.importorskip("peft", reason="needs the [lora] extra")
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, model, KeepingPublisher(), **options)


def test_a_trainer_that_is_not_open_says_so() -> None:
    with pytest.raises(RunError, match="call open"):
        TorchRLTrainer().consume([])
