"""What a run stands on: a collector, and a policy endpoint with its publisher; started for it, or given."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lightning_sdk.collector.address import read_announcement
from lightning_sdk.collector.reader import RemoteReader
from lightning_sdk.collector.store.ownership import owner_pid
from lightning_sdk.errors import CollectorError, ConfigError
from lightning_sdk.home import Home
from lightning_sdk.policy.publisher import HttpPublisher
from lightning_sdk.training.publishing import KeptPublisher
from lightning_sdk.training.services import Service, free_port, is_healthy, without_settings
from lightning_sdk.training.settings import Settings

# In the run's directory: the last weights of each policy, and those that a started endpoint reads.
_PUBLISHED: Final = "published"
_WEIGHTS: Final = "weights"


@dataclass
class Stack:
    """Addresses and secrets of the services, and those that we watch."""

    # Of the collector, "grpc://host:port".
    endpoint: str
    token: str | None = field(repr=False)
    # Base URL of the policy endpoint; "" until the trainer that serves it has said.
    policy_endpoint: str = ""
    policy_token: str | None = field(default=None, repr=False)
    # None where the trainer serves its policies.
    publisher: KeptPublisher | None = None
    services: list[Service] = field(default_factory=list)

    def check(self) -> None:
        """Raises RunError where a service died and could not be started again."""
        for service in self.services:
            service.check()

    @property
    def restarts(self) -> int:
        """How often services were started again."""
        return sum(service.restarted for service in self.services)

    @property
    def versions(self) -> dict[str, int]:
        """Versions by policy, as far as they went through the publisher."""
        return {} if self.publisher is None else self.publisher.versions

    @property
    def seconds_published(self) -> float:
        """Spent in publishing so far."""
        return 0.0 if self.publisher is None else self.publisher.seconds


@contextmanager
def open_stack(settings: Settings, home: Home, directory: Path, *, with_policies: bool) -> Iterator[Stack]:
    """Start what is not given; all of it ends with the block.

    Args:
        settings: of the run.
        home: the state directory: a started collector stores there, a started endpoint spools there.
        directory: of the run; takes the services' logs, and the weights that are published.
        with_policies: also a policy endpoint. Not for a trainer that serves its policies itself.

    Raises:
        ConfigError: what is given cannot be used.
        CollectorError: the given collector cannot be reached.
        RunError: a service does not start.
    """
    with ExitStack() as exits:
        # What was published is in a checkpoint, or in the models at the end.
        for name in (_PUBLISHED, _WEIGHTS):
            exits.callback(shutil.rmtree, directory / name, ignore_errors=True)
        stack = _collector(settings, home, directory, exits)
        if with_policies and settings.services.policy_endpoint is not None:
            _given_endpoint(settings, directory, stack)
        elif with_policies:
            _start_endpoint(settings, home, directory, stack, exits)
        yield stack


def _collector(settings: Settings, home: Home, directory: Path, exits: ExitStack) -> Stack:
    token = os.environ.get("LIGHTNING_TOKEN") or None
    given = settings.services.endpoint or _running_collector(home)
    if given is not None:
        RemoteReader(given, token).close()
        return Stack(endpoint=given, token=token)
    port = free_port()
    endpoint = f"grpc://127.0.0.1:{port}"
    service = Service(
        "collect",
        ["collect", "--home", str(home.path), "--port", str(port)],
        port=port,
        is_ready=lambda: _answers(endpoint),
        log=directory / "collect.log",
        environment=_environment(home, {}),
        restarts=settings.services.restarts,
        start_timeout_s=settings.services.start_timeout_s,
    )
    exits.callback(service.close)
    service.start()
    return Stack(endpoint=endpoint, token=None, services=[service])


def _running_collector(home: Home) -> str | None:
    """Of another process, which owns the store: there can be no second one."""
    announced = read_announcement(home.collector)
    if announced is None or announced.pid != owner_pid(home.store):
        return None
    return announced.address


def _answers(endpoint: str) -> bool:
    try:
        RemoteReader(endpoint).close()
    except CollectorError:
        return False
    return True


def _given_endpoint(settings: Settings, directory: Path, stack: Stack) -> None:
    url, weights_dir = settings.services.policy_endpoint, settings.services.weights_dir
    admin_token = os.environ.get("LIGHTNING_ADMIN_TOKEN")
    assert url is not None
    if not admin_token:
        raise ConfigError(
            f"the policy endpoint {url} is given, and LIGHTNING_ADMIN_TOKEN is not set: weights are published with "
            "the token that `lsdk serve --admin-token` was given"
        )
    if weights_dir is None:
        raise ConfigError(
            f"the policy endpoint {url} is given without services.weights_dir: give the directory that it was given "
            "as `lsdk serve --weights-dir`"
        )
    stack.policy_endpoint = url
    stack.policy_token = os.environ.get("LIGHTNING_POLICY_TOKEN") or None
    publisher = HttpPublisher(url, admin_token, weights_dir)
    stack.publisher = KeptPublisher(publisher, directory / _PUBLISHED, wait_up=lambda: None)


def _start_endpoint(settings: Settings, home: Home, directory: Path, stack: Stack, exits: ExitStack) -> None:
    port = free_port()
    policy_token, admin_token = secrets.token_hex(16), secrets.token_hex(16)
    weights_dir = directory / _WEIGHTS
    weights_dir.mkdir(exist_ok=True)
    stack.policy_endpoint = f"http://127.0.0.1:{port}/v1"
    stack.policy_token = policy_token
    service = Service(
        "serve",
        [
            "serve",
            *_serve_arguments(settings, home),
            *("--port", str(port), "--endpoint", stack.endpoint, "--weights-dir", str(weights_dir)),
        ],
        port=port,
        is_ready=lambda: is_healthy(port),
        log=directory / "serve.log",
        # Secrets go where other users of the machine cannot read them.
        environment=_environment(
            home,
            {
                "LIGHTNING_POLICY_TOKEN": policy_token,
                "LIGHTNING_ADMIN_TOKEN": admin_token,
                **({"LIGHTNING_TOKEN": stack.token} if stack.token else {}),
            },
        ),
        restarts=settings.services.restarts,
        start_timeout_s=settings.services.start_timeout_s,
        on_restart=lambda: publisher.again(),
    )
    publisher = KeptPublisher(
        HttpPublisher(stack.policy_endpoint, admin_token, weights_dir),
        directory / _PUBLISHED,
        wait_up=service.wait_up,
    )
    stack.publisher = publisher
    exits.callback(service.close)
    service.start()
    stack.services.append(service)


def _serve_arguments(settings: Settings, home: Home) -> list[str]:
    services = settings.services
    arguments = [
        *("--home", str(home.path), "--device", services.device, "--dtype", services.dtype),
        *("--max-batch", str(services.max_batch)),
        *("--train-temperature", repr(settings.learning.temperature)),
    ]
    for name, model in settings.policies.items():
        arguments += ["--policy", f"{name}={model}"]
    if services.threads is not None:
        arguments += ["--threads", str(services.threads)]
    return arguments


def _environment(home: Home, secrets_: Mapping[str, str]) -> dict[str, str]:
    return {**without_settings(os.environ), "LIGHTNING_SPOOL_DIR": str(home.spool), **secrets_}
