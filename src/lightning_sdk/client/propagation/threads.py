"""Threads: each that is started, and each task of a `ThreadPoolExecutor`, works in the scope it was given in.

asyncio needs nothing more: tasks and `to_thread` copy their context, and `run_in_executor` submits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning_sdk.client import faults
from lightning_sdk.client.propagation.carrying import call_in, carried_scope, is_servant

if TYPE_CHECKING:
    from threading import Thread

    from lightning_sdk.client.scope import Scope


def carrying_start(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """`Thread.start` that has `run` work in the present scope."""

    @functools.wraps(original)
    def start(self: Thread) -> None:
        run = None
        with faults.guard("propagation"):
            scope = carried_scope()
            if scope is not None and not is_servant(self) and "run" not in vars(self):
                run = vars(self)["run"] = _run_in(scope, self)
        try:
            original(self)
        except BaseException:
            if run is not None and vars(self).get("run") is run:
                del self.run
            raise

    return start


def _run_in(scope: Scope, thread: Thread) -> Callable[[], None]:
    inherited = thread.run

    def run() -> None:
        # Whoever looks at the thread sees what its class says.
        vars(thread).pop("run", None)
        call_in(scope, inherited)

    return run


def carrying_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    """`ThreadPoolExecutor.submit` whose tasks work in the scope that they were submitted in."""

    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        scope = carried_scope()
        task = fn if scope is None else functools.partial(call_in, scope, fn)
        return original(self, task, *args, **kwargs)

    return submit
