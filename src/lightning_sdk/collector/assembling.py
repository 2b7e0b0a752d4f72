"""Complete rollouts are assembled by the collector while it has nothing else to do, so that readers need not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lightning_sdk.collector.store.base import Store
from lightning_sdk.errors import StoreError

# How soon after its end a rollout is assembled; whoever reads it earlier assembles it.
_LOOK_EVERY_S: Final = 0.25
# Rollouts at a time: records that come meanwhile wait for no more than these.
_AT_A_TIME: Final = 4

_log = logging.getLogger(__name__)


class Assembling:
    """Made in the event loop of a collector; works from then on until `stop`.

    Args:
        store: stays open until `stop` has returned.
        is_busy: whether there is something better to do.
    """

    def __init__(self, store: Store, is_busy: Callable[[], bool]) -> None:
        self._store = store
        self._is_busy = is_busy
        self._stopping = asyncio.Event()
        self._problem = ""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End, with what is being assembled."""
        self._stopping.set()
        await self._task

    async def _run(self) -> None:
        while not self._stopping.is_set():
            kept = 0 if self._is_busy() else await asyncio.to_thread(self._keep)
            if kept < _AT_A_TIME:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _LOOK_EVERY_S)

    def _keep(self) -> int:
        try:
            return self._store.keep_episodes(_AT_A_TIME)
        except StoreError as error:
            # Told once; readers do without.
            if str(error) != self._problem:
                self._problem = str(error)
                _log.warning("rollouts are left to their readers to assemble: %s", error)
            return 0
