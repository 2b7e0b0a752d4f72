"""The engine that asks another server: any that answers `/v1/completions` as vLLM does. Imports no torch."""

from __future__ import annotations

from lightning_sdk.policy.upstream_engine.connecting import connect_engine
from lightning_sdk.policy.upstream_engine.engine import UpstreamEngine

__all__ = ["UpstreamEngine", "connect_engine"]
