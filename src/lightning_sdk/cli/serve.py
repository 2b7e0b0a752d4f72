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
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="[NAME=]URL",
    help="A server such as vLLM that samples for the policy NAME (the first), such as http://127.0.0.1:8000/v1.",
)
@click.option(
    "--upstream-token",
    envvar="LIGHTNING_UPSTREAM_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="API key of the upstream servers.",
)
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
    help="The name of MODEL's policy: in records, and as the model's id in the API.  "
    "[default: the directory's name]",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME=DIRECTORY",
    help="A policy to serve, in place of MODEL or beside it; can be given several times. The first is the default.",
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
@click.option(
    "--admin-token",
    envvar="LIGHTNING_ADMIN_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="Secret of whoever publishes new weights; without it nobody can.",
)
@click.option(
    "--weights-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Where published weights are read from, and from nowhere else.",
)
@click.option(
    "--drain-timeout",
    "drain_timeout_s",
    type=click.FloatRange(min=0),
    default=ServeOptions.drain_timeout_s,
    metavar="SECONDS",
    help="How long running answers may keep the old weights.",
)
@click.option(
    "--max-rollouts",
    type=click.IntRange(min=1),
    default=ServeOptions.max_rollouts,
    help="Rollouts below /r/ that may be open at once; then 429.",
)
@click.option(
    "--rollout-idle-timeout",
    "rollout_idle_timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=ServeOptions.rollout_idle_timeout_s,
    metavar="SECONDS",
    help="After how long without a call an open rollout below /r/ counts as lost.",
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
def command(
    home: Home,
    endpoint: str | None,
    collector_token: str | None,
    model: Path | None,
    name: str | None,
    policies: tuple[str, ...],
    upstreams: tuple[str, ...],
    **options: Any,
) -> None:
    """Serve MODEL, a local Hugging Face directory, to clients of OpenAI's and Anthropic's APIs.

    Every answer's token ids and log probabilities are recorded: into the spool, or with --endpoint at a
    collector. Ctrl-C (or SIGTERM) ends it, with exit code 0, once the running requests are done.
    """
    served = _named(model, name, policies)
    # Here, because the server's libraries are not needed for --help.
    from lightning_sdk.policy.server import serve

    serve(
        ServeOptions(policies=served, upstreams=_upstreams(upstreams, served), **options),
        home,
        endpoint=endpoint,
        token=collector_token,
        on_ready=lambda url: click.echo(f"serving {', '.join(served)} at {url}"),
    )


def _named(model: Path | None, name: str | None, policies: tuple[str, ...]) -> dict[str, Path]:
    """The policies by name, in the order given."""
    pairs: list[tuple[str, Path]] = []
    if model is not None:
        pairs.append((name or model.resolve().name, model))
    elif name is not None:
        raise click.UsageError(
            "--name names MODEL, which is missing: give a directory, or --policy NAME=DIRECTORY"
        )
    for given in policies:
        policy, separator, directory = given.partition("=")
        if not (policy and separator and directory):
            raise click.BadParameter(f"{given!r} is not of the form NAME=DIRECTORY", param_hint="--policy")
        pairs.append((policy, Path(directory)))
    if not pairs:
        raise click.UsageError("there is nothing to serve: give MODEL, or --policy NAME=DIRECTORY")
    served = dict(pairs)
    if len(served) < len(pairs):
        raise click.UsageError("two policies have one name: give each another with --name or --policy")
    return served


def _upstreams(given: tuple[str, ...], served: dict[str, Path]) -> dict[str, str]:
    """URLs by policy. One without a name is the first policy's."""
    urls: dict[str, str] = {}
    for each in given:
        name, separator, url = each.partition("=")
        if not separator or "://" in name:
            name, url = next(iter(served)), each
        if name in urls:
            raise click.UsageError(f"--upstream is given twice for the policy {name!r}: give it once")
        urls[name] = url
    return urls
