"""The engine on torch and transformers. Nothing outside this package imports either, and nothing imports this
package before `lsdk serve` has found a model to load.
"""

from __future__ import annotations

from lightning_sdk.policy.transformers_engine.loading import load_engine
from lightning_sdk.policy.transformers_engine.loop import TransformersEngine

__all__ = ["TransformersEngine", "load_engine"]
