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


def check_same_tensors(new: Path, present: Path) -> None:
    """Refuse weights whose tensors differ in name or shape from those that are served.

    Raises:
        PublishError: they do, or either cannot be read.
    """
    ours, theirs = _shapes(present), _shapes(new)
    for what, names in (
        ("lack", set(ours) - set(theirs)),
        ("have, beyond the model's,", set(theirs) - set(ours)),
    ):
        if names:
            raise PublishError(
                f"the weights {what} {', '.join(sorted(names)[:3])} ({len(names)} tensors): expected the same "
                "tensors that are served"
            )
    for name, shape in theirs.items():
        if shape != ours[name]:
            raise PublishError(
                f"{name} has shape {shape}, expected {ours[name]}: the weights are another model's"
            )


def _shapes(directory: Path) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for file in weight_files(directory):
        shapes.update(_shapes_in(file))
    return shapes


def _shapes_in(file: Path) -> dict[str, list[int]]:
    """Name and shape of each tensor in a file, read off its header, which is JSON after its length."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > _MAX_INDEX_BYTES:
                raise ValueError("its header is too large")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if file.stat().st_size != 8 + length + end:
            raise ValueError("it is cut short")
        return {name: entry["shape"] for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise PublishError(f"{file} is no file of safetensors ({error}): save the weights again") from None
