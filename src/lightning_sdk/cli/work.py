"""`lsdk work`: a worker that runs other people's rollouts of our agents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Final

import click

from lightning_sdk.cli import wording
from lightning_sdk.cli.console import notice
from lightning_sdk.cli.example import example
from lightning_sdk.cli.reading import home_option
from lightning_sdk.collector.work_peers import MAX_SLOTS
from lightning_sdk.errors import AgentError
from lightning_sdk.home import Home
from lightning_sdk.rollouts.remote_worker import RemoteWorker

_LOOK_EVERY_S: Final = 0.2
# How long results have to be taken after the last rollout has ended.
_SETTLE_TIMEOUT_S: Final = 30.0
_IMPORT: Final = """
import sys
from lightning_sdk.errors import AgentError
from lightning_sdk.rollouts.agents import load_agent
try:
    for name in sys.argv[1:]:
        load_agent(name)
except AgentError as error:
    sys.stderr.write(f"\\n{error}")
    sys.exit(17)
"""
_NO_AGENT: Final = 17


@click.command(
    epilog=example(
        "lsdk work --agent my_agent:solve --endpoint grpc://10.0.0.5:4319 --slots 8",
        "lsdk run my_agent:solve --tasks train.jsonl --kind remote --endpoint grpc://10.0.0.5:4319",
    )
)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    required=True,
    metavar="MODULE:FUNCTION",
    help="An agent that it runs, imported from the working directory; may be repeated. No other is run.",
)
@click.option(
    "--endpoint",
    envvar="LIGHTNING_ENDPOINT",
    show_envvar=True,
    required=True,
    metavar="URL",
    help="The collector that brings jobs and takes records, such as grpc://host:4319.",
)
@click.option(
    "--token", envvar="LIGHTNING_TOKEN", show_envvar=True, metavar="TOKEN", help="The collector's token."
)
@click.option(
    "--slots",
    type=click.IntRange(1, MAX_SLOTS),
    default=1,
    show_default=True,
    help="Rollouts that run at once, each in a process of its own.",
)
@home_option
def command(agents: tuple[str, ...], endpoint: str, token: str | None, slots: int, home: Home) -> int:
    """Run rollouts for others, as `lsdk run --kind remote` and `lsdk train` ask for them.

    Takes jobs of its agents from the collector at --endpoint, and goes on when that is restarted. It may be killed
    and started again at any time, also with other code: rollouts that ran are tried again by the runner's rule.

    Ctrl-C (or SIGTERM) finishes what runs and takes no more; a second one ends what runs, which is then lost.
    """
    _check_agents(agents)
    home.ensure()
    output = home.path / "work" / str(os.getpid())
    environment = {
        "LIGHTNING_HOME": str(home.path),
        "LIGHTNING_SPOOL_DIR": str(home.spool),
        "LIGHTNING_ENDPOINT": endpoint,
        "LIGHTNING_TOKEN": token or "",
    }
    worker = RemoteWorker(agents, endpoint, token=token, slots=slots, output=output, environment=environment)
    with _Interrupts() as interrupts:
        worker.start()
        try:
            return _follow(
                worker, interrupts, endpoint, f"{', '.join(agents)} on {wording.count(slots, 'slot')}"
            )
        finally:
            worker.close()


def _follow(worker: RemoteWorker, interrupts: _Interrupts, endpoint: str, what: str) -> int:
    """Tell of the connection until somebody wants this to end; then finish. Returns the exit code."""
    told: bool | None = None
    while not interrupts.wait(1, _LOOK_EVERY_S):
        if worker.error is not None:
            raise worker.error
        if worker.connected and told is not True:
            click.echo(f"working for {endpoint}: {what}")
            told = True
        elif not worker.connected and worker.problem is not None and told is not False:
            notice(f"waiting for the collector at {endpoint}: {worker.problem}")
            told = False
    worker.drain()
    if worker.running:
        left = wording.count(worker.running, "rollout")
        notice(f"finishing {left}; once more to end them at once")
    while not worker.wait_drained(_LOOK_EVERY_S):
        if interrupts.wait(2, 0.0):
            return 128 + signal.SIGINT
    if worker.connected and not worker.wait_settled(_SETTLE_TIMEOUT_S):
        notice("some results were not taken by their runner, and are lost")
    click.echo(f"{wording.count(worker.done, 'rollout')} done")
    return 0


class _Interrupts:
    """Counts Ctrl-C and SIGTERM."""

    def __init__(self) -> None:
        self._count = 0
        self._came = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def wait(self, count: int, timeout_s: float) -> bool:
        """Whether so many have come, after waiting for one at the most so long."""
        if self._count < count and timeout_s:
            self._came.wait(timeout_s)
        return self._count >= count

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        self._came.set()


def _check_agents(agents: tuple[str, ...]) -> None:
    """Import them in another process, so that this one stays small, and a mistake is told at once and here."""
    tried = subprocess.run(
        [sys.executable, "-c", _IMPORT, *agents],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if tried.returncode == _NO_AGENT:
        raise AgentError(tried.stderr.decode(errors="replace").rpartition("\n")[2])
    if tried.returncode != 0:
        raise AgentError(
            f"the process that imported {', '.join(agents)} ended with {tried.returncode}: import it with python to "
            "see why"
        )
