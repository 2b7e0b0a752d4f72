"""`lsdk serve MODEL`: the policy endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lightning_sdk.cli.example import example
from lightning_sdk.cli.reading import home_option
from lightning_sdk.home import Home
from lightning_sdk.policy.options import ServeOptions


@click.command(
    "serve",
    short_help="Serve a model to agents, and record its tokens.",
    epilog=example(
        "lsdk serve ./SmolLM2-135M-Instruct --name smollm2",
        f"OPENAI_BASE_URL=http://127.0.0.1:{ServeOptions.port}/v1 OPENAI_API_KEY=unused python agent.py",
    ),
    context_settings={"show_default": True},
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--host",
    default=ServeOptions.host,
    metavar="ADDRESS",
    help="Address to listen on; any but loopback needs --token.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=ServeOptions.port,
    metavar="PORT",
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The policy's name, and the model's id in the API.  [default: the directory's name]",
)
@click.option(
    "--train-temperature",
    type=click.FloatRange(0.01, 2),
    default=ServeOptions.train_temperature,
    help="Temperature of the calls of training rollouts, whatever they ask for.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default=ServeOptions.device,
    help="Where the model runs.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default=ServeOptions.dtype,
    help="Of the weights; auto is float32 on the CPU, and as saved on CUDA.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads for torch.  [default: torch's choice]"
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=ServeOptions.max_batch,
    help="Answers that are sampled at once.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(min=1),
    default=ServeOptions.max_queue,
    help="Answers that may wait; then 429.",
)
@click.option(
    "--token",
    envvar="LIGHTNING_POLICY_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="Secret that clients must send as their API key.",
)
@home_option
@click.option(
    "--endpoint",
    envvar="LIGHTNING_ENDPOINT",
    show_envvar=True,
    metavar="URL",
    help="Collector that token records are sent to, such as grpc://host:4319.",
)
@click.option(
    "--collector-token",
    envvar="LIGHTNING_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="The collector's token.",
)
def command(home: Home, endpoint: str | None, collector_token: str | None, **options: Any) -> None:
    """Serve MODEL, a local Hugging Face directory, as an OpenAI-style endpoint.

    Every answer's token ids and log probabilities are recorded: into the spool, or with --endpoint at a
    collector. Ctrl-C (or SIGTERM) ends it, with exit code 0, once the running requests are done.
    """
    # Here, because the server's libraries are not needed for --help.
    from lightning_sdk.policy.server import serve

    serve(
        ServeOptions(**options),
        home,
        endpoint=endpoint,
        token=collector_token,
        on_ready=lambda url: click.echo(f"serving {options['model']} at {url}"),
    )
