"""What `lsdk serve` can be told, with every default. Imports nothing heavy, for `--help`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What `lsdk serve` was asked for."""

    # Name of each policy to the directory of its model. The first is the default.
    policies: Mapping[str, Path]
    # Name of a policy to the URL of the server that samples for it, in place of an engine of our own.
    upstreams: Mapping[str, str] = field(default_factory=dict)
    # The API key of those servers.
    upstream_token: str | None = None
    host: str = "127.0.0.1"
    port: int = 8317
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: int | None = None
    max_batch: int = 16
    max_queue: int = 256
    # At which the calls of training rollouts are sampled.
    train_temperature: float = 1.0
    # The bearer token that clients must send; None: none is needed.
    token: str | None = None
    # What whoever publishes weights must send; None: there are no admin routes.
    admin_token: str | None = None
    # Weights are published from below it only.
    weights_dir: Path | None = None
    # How long answers that run may keep the old weights when new ones come.
    drain_timeout_s: float = 30.0
    # Of programs that do not use our client: how many may be open, and how long one may do nothing until it is lost.
    max_rollouts: int = 1024
    rollout_idle_timeout_s: float = 3600.0
