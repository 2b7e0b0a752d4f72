"""Backend `jsonl`: episodes as a dataset, one JSON object a line, with a manifest beside it."""

from __future__ import annotations

from lightning_backends.jsonl.backend import JsonlBackend

__all__ = ["JsonlBackend"]
