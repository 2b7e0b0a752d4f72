"""Checkpoints: what is restored goes on exactly as if nothing had happened, and nothing of it is a pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the [torch] extra")

from lightning_backends.torch_rl import TorchRLTrainer  # noqa: E402
from lightning_sdk.errors import RunError  # noqa: E402
from support.training import KeepingPublisher, make_groups, run_of, save_llama  # noqa: E402

pytestmark = pytest.mark.model

WAYS: list[dict[str, Any]] = [
    {"schedule": "cosine", "total_steps": 20, "warmup_steps": 3},
    {"rollouts_per_update": 2, "epochs": 2, "loss": "gspo"},
    {"credit": "turn_gae"},
    {"lora_rank": 4, "kl_coefficient": 0.1},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_llama(tmp_path_factory.mktemp("llama"), tie_word_embeddings=True)


def opened(tmp_path: Path, model: Path, publisher: KeepingPublisher, **options: Any) -> TorchRLTrainer:
    policies = options.pop("policies", ("tiny",))
    trainer = TorchRLTrainer(**{"learning_rate": 1e-3, **options})
    trainer.open(run_of(tmp_path / "run", model, publisher, policies=policies))
    return trainer


def saved(trainer: TorchRLTrainer, directory: Path) -> Path:
    directory.mkdir()
    trainer.save(directory)
    return directory


@pytest.mark.parametrize("options", WAYS, ids=lambda options: next(iter(options)))
def test_what_is_restored_gives_the_same_next_step_bit_for_bit(
    tmp_path: Path, model: Path, options: dict[str, Any]
) -> None:
    if "lora_rank" in options:
        pytest.importorskip("peft", reason="needs the [lora] extra")
    unbroken, broken = KeepingPublisher(), KeepingPublisher()
    trainer = opened(tmp_path, model, unbroken, **options)
    trainer.consume(make_groups(seed=1))
    trainer.consume(make_groups(seed=2))
    checkpoint = saved(trainer, tmp_path / "checkpoint")
    expected = trainer.consume(make_groups(seed=3)).metrics
    trainer.close()

    torch.rand(3)  # somebody else draws
    trainer = opened(tmp_path, model, broken, **options)
    trainer.restore(checkpoint)
    assert broken.published == [("tiny", 2)]
    assert len(broken.probes) == 1
    found = trainer.consume(make_groups(seed=3)).metrics
    trainer.close()
    assert broken.published[1:] == [("tiny", 3)]
    for name, value in unbroken.weights["tiny"].items():
        assert torch.equal(value, broken.weights["tiny"][name]), name
    for name in ("loss", "grad_norm", "learning_rate", "entropy"):
        assert found[name] == expected[name]


def test_a_second_break_is_as_good_as_the_first(tmp_path: Path, model: Path) -> None:
    publisher = KeepingPublisher()
    trainer = opened(tmp_path, model, publisher)
    trainer.consume(make_groups(seed=1))
    first = saved(trainer, tmp_path / "first")
    trainer.close()
    trainer = opened(tmp_path, model, publisher)
    trainer.restore(first)
    second = saved(trainer, tmp_path / "second")
    trainer.close()
    for path in sorted(first.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (second / path.relative_to(first)).read_bytes(), path


def test_everything_is_safetensors_or_json(tmp_path: Path, model: Path) -> None:
    trainer = opened(tmp_path, model, KeepingPublisher(), credit="turn_gae")
    trainer.consume(make_groups())
    checkpoint = saved(trainer, tmp_path / "checkpoint")
    trainer.close()
    assert {path.suffix for path in checkpoint.rglob("*") if path.is_file()} == {".safetensors", ".json"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": ("other",)}, "the checkpoint is of the policies tiny, and this run trains other"),
        ({"credit": "turn_gae"}, "has no value head in the checkpoint"),
        ({"lora_rank": 2}, "has no adapters in the checkpoint"),
    ],
)
def test_a_checkpoint_of_another_way_to_train_is_refused(
    tmp_path: Path, model: Path, options: dict[str, Any], message: str
) -> None:
    if "lora_rank" in options:
        pytest.importorskip("peft", reason="needs the [lora] extra")
    trainer = opened(tmp_path, model, KeepingPublisher())
    checkpoint = saved(trainer, tmp_path / "checkpoint")
    trainer.close()
    other = opened(tmp_path, model, KeepingPublisher(), **options)
    with pytest.raises(RunError, match=message):
        other.restore(checkpoint)
    other.close()


@pytest.mark.parametrize("damage", ["empty", "format", "index", "optimiser", "missing"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, model: Path, damage: str) -> None:
    trainer = opened(tmp_path, model, KeepingPublisher())
    trainer.consume(make_groups())
    checkpoint = saved(trainer, tmp_path / "checkpoint")
    index = checkpoint / "trainer.json"
    if damage == "empty":
        checkpoint = tmp_path / "nothing"
        checkpoint.mkdir()
    elif damage == "format":
        index.write_text(json.dumps({**json.loads(index.read_text()), "format": 9}))
    elif damage == "index":
        index.write_text("{")
    elif damage == "optimiser":
        (checkpoint / "0" / "optimiser.safetensors").write_bytes(b"\x80\x04 no tensors")
    else:
        (checkpoint / "random.safetensors").unlink()
    with pytest.raises(RunError, match="checkpoint"):
        trainer.restore(checkpoint)
    trainer.close()
