"""The weight files of a directory in the format of Hugging Face: safetensors only, since the others are pickles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lightning_sdk.errors import PublishError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 64 << 20


def weight_files(directory: Path) -> Sequence[Path]:
    """The files that hold the weights, in no order that matters.

    Raises:
        PublishError: there is no directory, or there are none of safetensors, or the index is none.
    """
    if not directory.is_dir():
        raise PublishError(f"{directory} is no directory here: give one that this machine can read")
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    index = directory / INDEX
    if not index.is_file():
        raise PublishError(
            f"{directory} has neither {SINGLE} nor {INDEX}: save the weights as safetensors (no pickle is read)"
        )
    files = [directory / name for name in sorted(_names(index))]
    for file in files:
        if not file.is_file():
            raise PublishError(f"{index} names {file.name}, which is not there: save the weights again")
    return files


def _names(index: Path) -> set[str]:
    try:
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise ValueError("it is too large")
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        if not all(Path(name).name == name and name.endswith(".safetensors") for name in names):
            raise ValueError("it names files elsewhere, or of another kind")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PublishError(f"{index} is no index of safetensors files ({error}): save it again") from None
    return names
