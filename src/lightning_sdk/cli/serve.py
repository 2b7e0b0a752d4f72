"""`lsdk serve MODEL`: the policy endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lightning_sdk.cli.example import example


@click.command(
    "serve",
    short_help="Serve a model to agents, and record its tokens.",
    epilog=example(
        "lsdk serve ./SmolLM2-135M-Instruct --name smollm2",
        "export OPENAI_BASE_URL=http://127.0.0.1:8317/v1 OPENAI_API_KEY=unused",
    ),
    context_settings={"show_default": True},
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", help="Address to listen on; any but loopback needs --token.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8317, help="Port to listen on; 0 takes a free one."
)
@click.option("--name", help="The model's id in the API.  [default: the directory's name]")
@click.option("--policy", help="The policy's name in the records.  [default: the model's id]")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Where the model runs."
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    help="Of the weights; auto is float32 on the CPU, and as saved on CUDA.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads for torch.  [default: torch's choice]"
)
@click.option("--max-batch", type=click.IntRange(min=1), default=16, help="Answers that are sampled at once.")
@click.option("--max-queue", type=click.IntRange(min=1), default=256, help="Answers that may wait; then 429.")
@click.option(
    "--endpoint", help="Collector to send token records to (grpc://host:port); also LIGHTNING_ENDPOINT."
)
@click.option(
    "--token", envvar="LIGHTNING_POLICY_TOKEN", help="Bearer token that clients must send.", show_envvar=True
)
def command(endpoint: str | None, **options: Any) -> None:
    """Serve MODEL, a local Hugging Face directory, as an OpenAI-style endpoint.

    Every answer's token ids and log probabilities are recorded: into the spool, or with --endpoint at a
    collector.
    SIGTERM finishes the running requests first.
    """
    from lightning_sdk.client.config import load_config
    from lightning_sdk.policy.server import ServeOptions, serve

    serve(
        ServeOptions(**options),
        load_config(endpoint=endpoint),
        on_ready=lambda url: click.echo(f"serving {options['model']} at {url}"),
    )
