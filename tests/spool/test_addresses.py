"""One form of an address and of a token, for all who listen or connect."""

from __future__ import annotations

import pytest

from lightning_sdk.addresses import bearer, grpc_target, is_loopback, join_host_port
from lightning_sdk.errors import ConfigError


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("grpc://localhost:4319", "localhost:4319"),
        ("grpc://127.0.0.1:1", "127.0.0.1:1"),
        ("grpc://[::1]:4319", "[::1]:4319"),
        ("grpc://collector.example:65535", "collector.example:65535"),
    ],
)
def test_an_endpoint_gives_the_target_for_grpc(endpoint: str, target: str) -> None:
    assert grpc_target(endpoint) == target


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "127.0.0.1:4319",
        "http://127.0.0.1:4319",
        "grpc://127.0.0.1",
        "grpc://:4319",
        "grpc://h:0",
        "grpc://h:x",
        "grpc://h:65536",
        "grpc://h:1/",
        "grpc://h:1/p",
        "grpc://h:1?q",
        "grpc://h:1#f",
        "grpc://h h:1",
        "grpc://h:1\n",
        "grpc://[::1:1",
        "grpc://user:secret@h:1",
        "grpc://user:secret@h:1/p",
        "user:secret@h:1",
    ],
)
def test_what_is_no_endpoint_is_refused_without_repeating_a_password(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="grpc://host:port") as caught:
        grpc_target(endpoint)
    assert "secret" not in str(caught.value)


def test_loopback_is_what_only_this_machine_reaches() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.8.8", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""))


def test_an_ipv6_host_gets_brackets() -> None:
    assert join_host_port("::1", 5) == "[::1]:5"
    assert join_host_port("h", 5) == "h:5"


def test_a_token_becomes_metadata() -> None:
    assert bearer("the right-one") == (("authorization", "Bearer the right-one"),)
    assert bearer(None) == bearer("") == ()


@pytest.mark.parametrize("token", ["sec\nret", "sécret", "secret ", " secret", "sec\x00ret"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ConfigError, match="ASCII") as caught:
        bearer(token)
    assert "ret" not in str(caught.value)
