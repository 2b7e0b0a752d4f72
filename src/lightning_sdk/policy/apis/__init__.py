"""The APIs that the endpoint speaks, one module each. All are answered by one service (`policy/service.py`)."""

from __future__ import annotations

from typing import Final

from lightning_sdk.policy.apis.chat import CHAT
from lightning_sdk.policy.apis.completions import COMPLETIONS
from lightning_sdk.policy.apis.messages import MESSAGES
from lightning_sdk.policy.apis.responses import RESPONSES
from lightning_sdk.policy.apis.surface import Api

__all__ = ["APIS", "Api"]

APIS: Final = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
