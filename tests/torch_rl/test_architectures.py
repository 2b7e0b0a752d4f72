"""Which models: those whose packed trees give what plain rows give; the others are refused with the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the [torch] extra")

import transformers  # noqa: E402

from lightning_backends.torch_rl.metrics import Tally  # noqa: E402
from lightning_backends.torch_rl.options import Options  # noqa: E402
from lightning_backends.torch_rl.policy import TrainedPolicy  # noqa: E402
from lightning_backends.torch_rl.samples import make_samples  # noqa: E402
from lightning_backends.torch_rl.update import Updater  # noqa: E402
from lightning_sdk.errors import ConfigError  # noqa: E402
from lightning_sdk.mdp.advantages import compute_advantages  # noqa: E402
from lightning_sdk.mdp.sequences import build_rows  # noqa: E402
from support.training import make_groups  # noqa: E402

pytestmark = pytest.mark.model

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ROTARY = {**SIZES, "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8}


def saved(directory: Path, name: str, sizes: dict[str, Any]) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


def gradients(directory: Path, **options: Any) -> dict[str, Any]:
    policy = TrainedPolicy("tiny", directory, Options(**options))
    samples = make_samples(build_rows(compute_advantages(make_groups(groups=1))))
    Updater(policy, temperature=1.0, max_tokens=None).accumulate(samples, Tally(), first=True)
    return {name: each.grad for name, each in policy.trained().items() if each.grad is not None}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        (
            "GPT2",
            {
                "vocab_size": 97,
                "n_embd": 32,
                "n_layer": 2,
                "n_head": 4,
                "n_positions": 128,
                "eos_token_id": 2,
            },
        ),
        ("Gemma2", {**ROTARY, "sliding_window": 64, "final_logit_softcapping": 5.0}),
        ("Granite", {**ROTARY, "logits_scaling": 4.0}),
        ("Mistral", {**ROTARY, "sliding_window": 16}),
    ],
)
def test_packed_trees_give_the_gradients_of_plain_rows(
    tmp_path: Path, name: str, sizes: dict[str, Any]
) -> None:
    """Learned positions and dropout; capped logits; scaled logits; a sliding window shorter than the rows."""
    directory = saved(tmp_path, name, sizes)
    packed = gradients(directory)
    plain = gradients(directory, pack=False, share_prefixes=False)
    scale = max(float(value.abs().max()) for value in plain.values())
    assert scale > 1e-3
    assert max(float((packed[at] - plain[at]).abs().max()) for at in plain) < 1e-4 * scale


def test_a_recurrent_model_is_refused_and_told_how_to_be_trained(tmp_path: Path) -> None:
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    directory = saved(tmp_path, "Mamba", sizes)
    with pytest.raises(ConfigError, match=r"cannot be trained on packed rows .* give pack=false"):
        TrainedPolicy("tiny", directory, Options())
    assert gradients(directory, pack=False, share_prefixes=False)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its model does not load"):
        TrainedPolicy("tiny", tmp_path, Options())
