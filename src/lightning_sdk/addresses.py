"""Addresses of servers, and the token that opens one: one form and one check for all who listen or connect."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from lightning_sdk.errors import ConfigError

SCHEME: Final = "grpc"


def grpc_target(endpoint: str) -> str:
    """The "host:port" of an endpoint "grpc://host:port", as gRPC wants it.

    Raises:
        ConfigError: it is not exactly of that form. What may be a password in it is not repeated.
    """
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    plain = endpoint.isprintable() and " " not in endpoint and "@" not in endpoint
    if not (host and port and plain and endpoint == f"{SCHEME}://{parts.netloc}"):
        raise ConfigError(
            f"the endpoint {without_user(endpoint)!r} is not of the form grpc://host:port, such as "
            "grpc://127.0.0.1:4319"
        )
    return join_host_port(host, port)


def join_host_port(host: str, port: int) -> str:
    """Host and port in one, with the brackets that IPv6 needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`, which comes without brackets."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def leads_to(endpoint: str, host: str, port: int) -> bool:
    """Whether `endpoint`, in a file of this machine, surely means its server that listens on `host` and `port`."""
    try:
        parts = urlsplit(endpoint)
        named, named_port = parts.hostname or "", parts.port
    except ValueError:
        return False
    everywhere = host in ("0.0.0.0", "::")  # noqa: S104
    return (
        parts.scheme == SCHEME
        and named_port == port
        and (named == host or (is_loopback(named) and (everywhere or is_loopback(host))))
    )


def without_user(url: str) -> str:
    """`url` without what may be a password, for a message."""
    scheme, separator, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    return scheme + separator + authority.rpartition("@")[2] + slash + path


def checked_token(token: str, variable: str = "LIGHTNING_TOKEN") -> str:
    """A token that every client can send in a header.

    Args:
        token: what is to be sent.
        variable: where it may come from, for the message.

    Raises:
        ConfigError: it is empty, or has other characters than printable ASCII, or spaces around it. The
            message does not repeat it.
    """
    if not (token.isascii() and token.isprintable() and token == token.strip() and token):
        raise ConfigError(
            "the token cannot be sent: it is empty, has spaces around it or characters other than printable "
            f"ASCII; check {variable}, or what was given instead"
        )
    return token


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    """The gRPC metadata with which a client shows its token; none without one.

    Raises:
        ConfigError: as `checked_token`.
    """
    return (("authorization", f"Bearer {checked_token(token)}"),) if token else ()
