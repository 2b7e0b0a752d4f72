"""`lsdk serve`: a model directory becomes an HTTP endpoint, until a signal ends it."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import uvicorn

from lightning_sdk.addresses import checked_token, grpc_target, is_loopback, join_host_port
from lightning_sdk.client.producer import Producer
from lightning_sdk.errors import ConfigError
from lightning_sdk.home import Home
from lightning_sdk.policy.admin import Admin
from lightning_sdk.policy.app import make_app
from lightning_sdk.policy.engine import Engine
from lightning_sdk.policy.harness import Harness
from lightning_sdk.policy.options import ServeOptions
from lightning_sdk.policy.policies import Policies, Policy, TrainingSampling
from lightning_sdk.policy.recording import TokenRecorder

# Connections that wait to be accepted: agents start by the hundred.
_BACKLOG = 2048
# Longer than clients keep an idle connection: who closes first has no request lost on the way.
_KEEP_ALIVE_S = 120


def serve(
    options: ServeOptions,
    home: Home,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    on_ready: Callable[[str], None],
) -> None:
    """Load, listen and answer until SIGTERM or SIGINT; then finish what runs, and return.

    Args:
        options: what to serve, and where.
        home: its spool takes the token records.
        endpoint: the collector, "grpc://host:port", that they are sent to; None: they stay in the spool.
        token: the collector's token, where it has one.
        on_ready: called once with the base URL for clients, when it answers.

    Raises:
        ConfigError: the model does not load, the port is taken, the host is open without a token, or the
            endpoint is none.
    """
    _check_exposure(options.host, options.token)
    admin = _admin(options)
    if endpoint:
        grpc_target(endpoint)
    _check_upstreams(options)
    for directory in options.policies.values():
        _check_model_directory(directory)
    # Before the models are loaded: a port that is taken should not cost half a minute.
    with _listen(options.host, options.port) as listener, ExitStack() as closing:
        engines = {
            name: _connect(directory, options.upstreams[name], options)
            if name in options.upstreams
            else _load(directory, options, closing)
            for name, directory in options.policies.items()
        }
        producer = Producer(home.spool, destination=endpoint or "", token=token)
        closing.callback(producer.close)
        training = TrainingSampling(temperature=options.train_temperature)
        policies = Policies(
            Policy(name, engine, TokenRecorder(producer, name), training) for name, engine in engines.items()
        )
        harness = Harness(
            producer, max_open=options.max_rollouts, idle_timeout_s=options.rollout_idle_timeout_s
        )
        app = make_app(policies, token=options.token, admin=admin, harness=harness)
        logging.getLogger("uvicorn.error").addFilter(_not_answered_twice)
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=_KEEP_ALIVE_S
        )
        with _signals_end_quietly():
            _Server(settings, list(engines.values()), harness, lambda: on_ready(_base_url(listener))).run(
                sockets=[listener]
            )


class _Server(uvicorn.Server):
    """A server that says when it answers, and stops its engines after the last request."""

    def __init__(
        self,
        config: uvicorn.Config,
        engines: Sequence[Engine],
        harness: Harness,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._engines = engines
        self._harness = harness
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets=sockets)
        for engine in self._engines:
            await engine.stop()
        self._harness.close()


def _not_answered_twice(record: logging.LogRecord) -> bool:
    """Uvicorn itself answers a request whose rest is no HTTP, and says so in a line; then ours comes too late.

    That is no failure of ours, and its traceback would be in the log as often as somebody likes.
    """
    error = record.exc_info[1] if record.exc_info else None
    late = type(error).__name__ == "LocalProtocolError" and "state=MUST_CLOSE" in str(error)
    return not late


def _connect(directory: Path, url: str, options: ServeOptions) -> Engine:
    if find_spec("transformers") is None:
        raise ConfigError("--upstream needs transformers for the model's tokenizer: pip install transformers")
    from lightning_sdk.policy.upstream_engine import connect_engine

    engine = connect_engine(
        directory,
        url,
        token=options.upstream_token,
        max_choices=options.max_batch + options.max_queue,
    )
    if engine.raw_logprobs and options.train_temperature != 1:
        raise ConfigError(
            f"the upstream {url} tells log probabilities before temperature, so none that training at "
            f"--train-temperature {options.train_temperature:g} could use: start vLLM with --logprobs-mode "
            "processed_logprobs, or train at temperature 1"
        )
    return engine


def _load(directory: Path, options: ServeOptions, closing: ExitStack) -> Engine:
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"serving a model needs {' and '.join(missing)}: pip install 'agent-lightning-sdk[torch]'"
        )
    from lightning_sdk.policy.transformers_engine import load_engine

    engine = load_engine(
        directory,
        device=options.device,
        dtype=options.dtype,
        threads=options.threads,
        max_batch=options.max_batch,
        max_queue=options.max_queue,
    )
    closing.callback(engine.close)
    return engine


def _admin(options: ServeOptions) -> Admin | None:
    if options.admin_token is None:
        return None
    checked_token(options.admin_token)
    if options.admin_token == options.token:
        raise ConfigError(
            "--admin-token is the clients' --token, so every agent could publish: give it another"
        )
    if options.weights_dir is None:
        raise ConfigError("--admin-token needs --weights-dir, the directory that weights are published from")
    try:
        options.weights_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--weights-dir {options.weights_dir} cannot be made ({error.strerror}): give a directory to write to"
        ) from error
    return Admin(
        token=options.admin_token, weights_dir=options.weights_dir, drain_timeout_s=options.drain_timeout_s
    )


def _check_upstreams(options: ServeOptions) -> None:
    for name, url in options.upstreams.items():
        if name not in options.policies:
            raise ConfigError(
                f"--upstream names the policy {name!r}, which is not served: there are {', '.join(options.policies)}"
            )
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--upstream {url!r} is no URL such as http://127.0.0.1:8000/v1")


def _check_model_directory(model: Path) -> None:
    if not model.is_dir():
        raise ConfigError(
            f"{model} is no directory: expected a local Hugging Face model (nothing is downloaded)"
        )
    if not (model / "config.json").is_file():
        raise ConfigError(f"{model} has no config.json: expected a Hugging Face model directory")


def _check_exposure(host: str, token: str | None) -> None:
    if token is not None:
        checked_token(token)
    elif not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines: give a --token that clients must send, "
            "or keep to 127.0.0.1"
        )


@contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # From now on a second server on the port fails; connections wait until the model is loaded.
            listener.listen(_BACKLOG)
            yield listener
        finally:
            listener.close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror or error}): choose another --port or --host"
        ) from error


def _base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{join_host_port(host, port)}/v1"


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """Uvicorn finishes what runs on SIGTERM and SIGINT, then raises the signal again: let that be nothing."""

    def ignore(number: int, frame: FrameType | None) -> None:
        return

    before = {number: signal.signal(number, ignore) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
