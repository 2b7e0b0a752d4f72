"""Publishing from the trainer's side: weights go to where the endpoint may read them, then it is told."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from lightning_sdk.addresses import checked_token, without_user
from lightning_sdk.errors import ConfigError, PublishError
from lightning_sdk.plugins import Probe
from lightning_sdk.policy.weight_files import INDEX, weight_files

# Of what was published here: the weights that are served, and those before them, to go back to.
_KEPT = 2
_MAX_ANSWER_BYTES = 1 << 20
_VERSION_NAME = re.compile(r"v(\d+)")


class HttpPublisher:
    """`plugins.Publisher` for an endpoint of `lsdk serve`.

    It and the endpoint see the same files, under the same names: one machine, or a shared file system.
    """

    def __init__(self, base_url: str, admin_token: str, weights_dir: Path, *, timeout_s: float = 600) -> None:
        """Connect to nothing yet.

        Args:
            base_url: of the endpoint, with or without `/v1`.
            admin_token: what the endpoint was started with as `--admin-token`.
            weights_dir: its `--weights-dir`.
            timeout_s: how long one publish may take, the draining of answers that run included.

        Raises:
            ConfigError: the URL is none of http, or the token cannot be sent.
        """
        self._url = urlsplit(base_url.rstrip("/").removesuffix("/v1"))
        if self._url.scheme not in ("http", "https") or not self._url.hostname or "@" in self._url.netloc:
            raise ConfigError(
                f"the endpoint {without_user(base_url)!r} is no URL such as http://127.0.0.1:8317/v1: give one"
            )
        self._admin_token = checked_token(admin_token)
        self._weights_dir = weights_dir.absolute()
        self._timeout_s = timeout_s

    def publish(self, policy: str, weights: Path, *, version: int, probe: Probe | None = None) -> None:
        """See `plugins.Publisher.publish`.

        Weights that lie outside of the weights directory are hard-linked into it, or copied where that cannot
        be: delete them afterwards or keep them, but do not write into the same files.
        """
        placed = self._place(policy, weights, version)
        order: dict[str, Any] = {"weights": str(placed), "version": version}
        if probe is not None:
            order["probe"] = asdict(probe)
        self._post(f"/admin/policies/{quote(policy, safe='')}/publish", order)
        self._prune(policy, version)

    def _place(self, policy: str, weights: Path, version: int) -> Path:
        """Where the endpoint finds the weights."""
        if weights.resolve().is_relative_to(self._weights_dir.resolve()):
            return weights.resolve()
        files = [*weight_files(weights), weights / INDEX, weights / "config.json"]
        target = self._home(policy) / f"v{version}"
        # Made under another name first: what has its final name is whole.
        making = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(parents=True)
            for file in files:
                if file.is_file():
                    _link_or_copy(file.resolve(), making / file.name)
            shutil.rmtree(target, ignore_errors=True)
            making.rename(target)
        except OSError as error:
            shutil.rmtree(making, ignore_errors=True)
            raise PublishError(
                f"the weights cannot be put into {self._weights_dir} ({error.strerror or error}): it must be the "
                "endpoint's --weights-dir, and be writable here"
            ) from error
        return target

    def _prune(self, policy: str, version: int) -> None:
        """Delete what was placed here for older versions."""
        home = self._home(policy)
        if not home.is_dir():
            return
        placed = {
            int(match[1]): each for each in home.iterdir() if (match := _VERSION_NAME.fullmatch(each.name))
        }
        older = sorted(number for number in placed if number <= version)
        for number in older[:-_KEPT]:
            shutil.rmtree(placed[number], ignore_errors=True)

    def _home(self, policy: str) -> Path:
        return self._weights_dir / f"policy-{quote(policy, safe='')}"

    def _post(self, path: str, body: Any) -> None:
        secure = self._url.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        # Straight there: no proxy and no redirection sees the token.
        connection = connect(self._url.hostname or "", self._url.port, timeout=self._timeout_s)
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._admin_token}"}
        try:
            connection.request("POST", self._url.path + path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            status, answer = response.status, response.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise PublishError(
                f"the endpoint at {self._url.netloc} did not answer ({error}): see whether it runs, then publish the "
                "same version again"
            ) from error
        finally:
            connection.close()
        if status != http.client.OK:
            raise PublishError(self._refusal(status, answer))

    def _refusal(self, status: int, answer: bytes) -> str:
        try:
            told = json.loads(answer)["error"]
            message, code = str(told["message"]), told.get("code")
        except (ValueError, KeyError, TypeError):
            message, code = "it did not say why", None
        if status == http.client.NOT_FOUND and code is None:
            return f"{self._url.netloc} has no admin routes: start it with --admin-token and --weights-dir"
        return f"the endpoint refused the weights ({status}): {message}"


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
