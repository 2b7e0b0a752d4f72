"""`lsdk collect`: the collector, in the foreground."""

from __future__ import annotations

import click

from lightning_sdk.cli.example import example
from lightning_sdk.cli.reading import home_option
from lightning_sdk.collector.server import DEFAULT_PORT, run_collector
from lightning_sdk.home import Home


@click.command(
    epilog=example("lsdk collect", f"LIGHTNING_ENDPOINT=grpc://127.0.0.1:{DEFAULT_PORT} python agent.py")
)
@home_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on; any but loopback needs --token.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    metavar="PORT",
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--token",
    envvar="LIGHTNING_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="Secret that clients must send. Others on this machine can read a command line, not a variable.",
)
def command(home: Home, host: str, port: int, token: str | None) -> None:
    """Receive records over the network and store them.

    Takes records of lightning_sdk clients and OpenTelemetry traces (OTLP over gRPC) on the same port, and
    answers readers. Ctrl-C (or SIGTERM) ends it, with exit code 0, once all that was received is stored.
    """

    def ready(address: str) -> None:
        click.echo(f"collecting at {address} into {home.store}")

    run_collector(home, host=host, port=port, token=token, on_ready=ready)
