"""Publishing over HTTP: the admin route, and the publisher that a trainer uses.

1. Only the admin token opens the route, and without one there is no route.
2. Weights are read from below the weights directory only, wherever links lead.
3. The publisher places weights, tells the endpoint, and says in one sentence why it was refused.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from lightning_sdk.errors import ConfigError, PublishError
from lightning_sdk.plugins import Probe, Publisher
from lightning_sdk.policy.admin import Admin
from lightning_sdk.policy.publisher import HttpPublisher
from support.policy_fakes import ScriptedEngine, scripted_policies, served


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


@pytest.fixture
def endpoint(root: Path) -> Iterator[tuple[str, ScriptedEngine]]:
    policies, engine, _ = scripted_policies()
    admin = Admin(token="open", weights_dir=root, drain_timeout_s=1)
    with served(policies, token="agents", admin=admin) as url:
        yield url.removesuffix("/v1"), engine


def _checkpoint(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "config.json").write_text("{}")
    (directory / "optimizer.pt").write_bytes(b"none of its business")
    return directory


def _post(url: str, body: Any, token: str | None = "open", name: str = "scripted") -> tuple[int, Any]:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urlopen(Request(f"{url}/admin/policies/{name}/publish", data, headers), timeout=20) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)["error"]


def test_weights_below_the_directory_are_published(endpoint: tuple[str, ScriptedEngine], root: Path) -> None:
    url, engine = endpoint
    weights = _checkpoint(root / "a" / "step1")
    probe = {"token_ids": [[1, 2]], "logprobs": [[-0.5]]}
    status, answer = _post(url, {"weights": str(weights), "version": 3, "probe": probe})
    assert (status, answer) == (200, {"policy": "scripted", "policy_version": 3})
    assert engine.published == [(weights, Probe(token_ids=[[1, 2]], logprobs=[[-0.5]]))]


@pytest.mark.parametrize("token", [None, "agents", "wrong"])
def test_only_the_admin_token_opens_the_route(
    endpoint: tuple[str, ScriptedEngine], root: Path, token: str | None
) -> None:
    url, engine = endpoint
    status, _ = _post(url, {"weights": str(_checkpoint(root / "w")), "version": 1}, token)
    assert (status, engine.published) == (401, [])


def test_without_an_admin_token_there_is_no_route(root: Path) -> None:
    with served(scripted_policies()[0]) as url:
        assert _post(url.removesuffix("/v1"), {"weights": str(root), "version": 1})[0] == 404
        with pytest.raises(PublishError, match="no admin routes"):
            HttpPublisher(url, "open", root).publish("scripted", _checkpoint(root / "w"), version=1)


@pytest.mark.parametrize("how", ["absolute", "dots", "relative", "directory link", "file link", "shard link"])
def test_weights_elsewhere_are_refused_wherever_links_lead(
    endpoint: tuple[str, ScriptedEngine], root: Path, how: str
) -> None:
    url, engine = endpoint
    outside = _checkpoint(root.parent / "outside")
    given = str(outside)
    if how == "dots":
        given = f"{root}/../outside"
    elif how == "relative":
        given = "outside"
    elif how == "directory link":
        (root / "link").symlink_to(outside)
        given = str(root / "link")
    elif how == "file link":
        (root / "w").mkdir()
        (root / "w" / "model.safetensors").symlink_to(outside / "model.safetensors")
        given = str(root / "w")
    elif how == "shard link":
        (root / "w").mkdir()
        (root / "w" / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
        (root / "w" / "b.safetensors").symlink_to(outside / "model.safetensors")
        given = str(root / "w")
    status, error = _post(url, {"weights": given, "version": 1})
    assert (status, error["code"]) == (403, "weights_outside")
    assert engine.published == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        ({"version": 1}, "weights"),
        ({"weights": "/w", "version": -1}, "version"),
        ({"weights": "/w", "version": "1"}, "version"),
        ({"weights": "/w", "version": True}, "version"),
        ({"weights": "/w", "version": 1, "extra": 1}, "extra"),
        (
            {"weights": "/w", "version": 1, "probe": {"token_ids": [[1.5]], "logprobs": [[]]}},
            "probe.token_ids.0.0",
        ),
    ],
)
def test_an_order_that_is_none_is_refused_by_its_field(
    endpoint: tuple[str, ScriptedEngine], body: Any, param: str | None
) -> None:
    status, error = _post(endpoint[0], body)
    assert (status, error["param"]) == (400, param)


def test_an_unknown_policy_is_404_and_refused_weights_are_409(
    endpoint: tuple[str, ScriptedEngine], root: Path
) -> None:
    url, engine = endpoint
    order = {"weights": str(_checkpoint(root / "w")), "version": 1}
    assert _post(url, order, name="nobody")[0] == 404
    engine.refusal = "they do not fit"
    status, error = _post(url, order)
    assert (status, error["code"], error["message"]) == (409, "publish_refused", "they do not fit")
    assert _post(url, {"weights": str(root), "version": 1})[0] == 409


def test_a_publisher_places_weights_that_lie_elsewhere_and_keeps_the_last_two(
    endpoint: tuple[str, ScriptedEngine], root: Path, tmp_path: Path
) -> None:
    url, engine = endpoint
    publisher: Publisher = HttpPublisher(url + "/v1/", "open", root)
    for version in (1, 2, 3, 3):
        weights = _checkpoint(tmp_path / f"step{version}-{len(engine.published)}")
        publisher.publish(
            "scripted", weights, version=version, probe=Probe(token_ids=[[1, 2]], logprobs=[[-1]])
        )
    placed = [path for path, _ in engine.published]
    assert all(path.is_relative_to(root) for path in placed)
    assert sorted(path.name for path in placed[0].parent.iterdir()) == ["v2", "v3"]
    assert sorted(path.name for path in placed[-1].iterdir()) == ["config.json", "model.safetensors"]
    assert (placed[-1] / "model.safetensors").stat().st_nlink == 2  # no byte was copied


def test_a_publisher_leaves_weights_that_lie_there_already_where_they_are(
    endpoint: tuple[str, ScriptedEngine], root: Path
) -> None:
    url, engine = endpoint
    weights = _checkpoint(root / "mine")
    HttpPublisher(url, "open", root).publish("scripted", weights, version=1)
    assert [path for path, _ in engine.published] == [weights]
    assert (weights / "optimizer.pt").exists()


def test_a_policy_whose_name_looks_like_a_path_is_placed_below_the_directory(
    root: Path, tmp_path: Path
) -> None:
    weights = _checkpoint(tmp_path / "w")
    for name in ("..", "../up", "a/b"):
        placed = HttpPublisher("http://127.0.0.1:1", "open", root)._place(name, weights, 1)
        assert placed.resolve().parent.parent == root.resolve()


def test_what_goes_wrong_is_one_sentence(
    endpoint: tuple[str, ScriptedEngine], root: Path, tmp_path: Path
) -> None:
    url, engine = endpoint
    weights = _checkpoint(tmp_path / "w")
    engine.refusal = "they do not fit"
    with pytest.raises(PublishError, match=r"\(409\): they do not fit"):
        HttpPublisher(url, "open", root).publish("scripted", weights, version=1)
    with pytest.raises(PublishError, match="401"):
        HttpPublisher(url, "wrong", root).publish("scripted", weights, version=1)
    with pytest.raises(PublishError, match="no directory"):
        HttpPublisher(url, "open", root).publish("scripted", tmp_path / "none", version=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(PublishError, match="--weights-dir"):
        HttpPublisher(url, "open", tmp_path / "file").publish("scripted", weights, version=1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(PublishError, match="did not answer"):
            HttpPublisher(closed, "open", root).publish("scripted", weights, version=1)
    for bad in ("127.0.0.1:80", "ftp://x", "http://user:secret@x"):
        with pytest.raises(ConfigError) as caught:
            HttpPublisher(bad, "open", root)
        assert "secret" not in str(caught.value)
