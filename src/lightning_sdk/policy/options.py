"""What `lsdk serve` can be told, with every default. Imports nothing heavy, for `--help`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What `lsdk serve` was asked for."""

    model: Path
    host: str = "127.0.0.1"
    port: int = 8317
    # The policy's name, in records and as the model's id in the API; None: the directory's name.
    name: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: int | None = None
    max_batch: int = 16
    max_queue: int = 256
    # At which the calls of training rollouts are sampled.
    train_temperature: float = 1.0
    # The bearer token that clients must send; None: none is needed.
    token: str | None = None
