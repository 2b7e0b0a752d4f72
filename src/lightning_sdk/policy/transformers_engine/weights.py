"""New weights for a model that is loaded: read and checked as a whole, then swapped, and swapped back if need be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from lightning_sdk.errors import PublishError
from lightning_sdk.policy.weight_files import weight_files

# Types that weights may be saved in; they become the model's own. As safetensors calls them.
_FLOATING = frozenset({"F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class NewWeights:
    """Tensors that fit the model, each with the one that it replaces. On the CPU, in memory of their own."""

    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]


class Weights:
    """The weights of one model, by their names in a checkpoint. Tied ones are one tensor under several names."""

    def __init__(self, model: Any) -> None:
        self._named: Mapping[str, torch.Tensor] = model.state_dict(keep_vars=True)
        # To each tensor the first of its names.
        self._names: dict[int, str] = {}
        for name, tensor in self._named.items():
            self._names.setdefault(id(tensor), name)

    def read(self, directory: Path) -> NewWeights:
        """Read and check a checkpoint; the model stays as it is.

        Names and shapes must be exactly the model's; of tied weights one name is enough.

        Raises:
            PublishError: they are not, a value is no finite number, or the files cannot be read.
        """
        files = weight_files(directory)
        try:
            self._check(_shapes(files))
            return NewWeights(self._load(files))
        except (SafetensorError, OSError) as error:
            raise PublishError(
                f"{directory}: its weights cannot be read: {' '.join(str(error).split())}"
            ) from None

    def put(self, new: NewWeights) -> Callable[[], None]:
        """Swap them in, all or none. For the thread that computes, between two passes.

        Returns:
            What swaps the old ones back.
        """
        own = [tensor for tensor, _ in new.pairs]
        # On the CPU no byte is copied: each parameter gets other memory. A device may have no room for two copies.
        here = all(tensor.device.type == "cpu" for tensor in own)
        old = [tensor.data if here else tensor.data.cpu() for tensor in own]

        def fill(values: Sequence[torch.Tensor]) -> None:
            for tensor, value in zip(own, values, strict=True):
                if here:
                    tensor.data = value
                else:
                    tensor.data.copy_(value)

        try:
            fill([fresh for _, fresh in new.pairs])
        except BaseException:
            fill(old)
            raise
        return lambda: fill(old)

    def _check(self, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
        unknown = sorted(set(shapes) - set(self._named))
        if unknown:
            raise PublishError(
                f"the weights have {_some(unknown)}, which the model that is served does not: expected the same "
                "architecture, saved by save_pretrained"
            )
        covered = {self._names[id(self._named[name])] for name in shapes}
        missing = sorted(set(self._names.values()) - covered)
        if missing:
            raise PublishError(
                f"the weights lack {_some(missing)}: expected all of the model, not only what changed or an adapter"
            )
        for name, (shape, dtype) in shapes.items():
            own = self._named[name]
            if shape != tuple(own.shape):
                raise PublishError(
                    f"{name} has shape {list(shape)}, expected {list(own.shape)}: the weights are another model's"
                )
            if dtype not in _FLOATING and own.dtype.is_floating_point:
                raise PublishError(
                    f"{name} is saved as {dtype}, expected one of {', '.join(sorted(_FLOATING))}: save plain weights"
                )

    def _load(self, files: Sequence[Path]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for file in files:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - no mapping
                    own = self._named[name]
                    # A copy: the file is mapped, and whoever wrote it may change it.
                    tensor = opened.get_tensor(name).to(dtype=own.dtype, copy=True)
                    _check_finite(name, tensor)
                    self._check_tied(name, pairs.get(id(own)), tensor)
                    pairs[id(own)] = (own, tensor)
        return list(pairs.values())

    def _check_tied(
        self, name: str, other: tuple[torch.Tensor, torch.Tensor] | None, tensor: torch.Tensor
    ) -> None:
        if other is not None and not torch.equal(other[1], tensor):
            raise PublishError(
                f"{name} differs from {self._names[id(other[0])]}, but the model that is served has them tied: "
                "train it tied (tie_word_embeddings), or serve an untied copy from the start"
            )


def _shapes(files: Sequence[Path]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each tensor, from the headers alone."""
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                if name in found:
                    raise PublishError(f"{name} is in two files of {file.parent}: save the weights again")
                part = opened.get_slice(name)
                found[name] = (tuple(part.get_shape()), str(part.get_dtype()))
    return found


def _check_finite(name: str, tensor: torch.Tensor) -> None:
    if tensor.is_floating_point() and tensor.numel():
        least, most = tensor.aminmax()  # NaN if one is
        if not (torch.isfinite(least) and torch.isfinite(most)):
            raise PublishError(f"{name} has values that are no finite numbers: the training diverged")


def _some(names: Sequence[str]) -> str:
    told = ", ".join(names[:3])
    return told if len(names) <= 3 else f"{told} and {len(names) - 3} more"
