"""The admin routes: whoever trains a policy publishes its weights here. They need a token of their own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightning_sdk.errors import PublishError
from lightning_sdk.plugins import Probe
from lightning_sdk.policy.errors import ApiError, invalid
from lightning_sdk.policy.http import check_content_type, check_token, json_response, read_body
from lightning_sdk.policy.metrics import Metrics
from lightning_sdk.policy.policies import Policies
from lightning_sdk.policy.weight_files import weight_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """Who may publish, and from where."""

    token: str
    # Weights are read from below it only.
    weights_dir: Path
    # How long answers that run may keep the old weights.
    drain_timeout_s: float


class _Probe(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    token_ids: list[list[int]]
    logprobs: list[list[Annotated[float, Field(allow_inf_nan=False)]]]
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class _Publish(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    weights: str
    version: Annotated[int, Field(ge=0, lt=2**63)]
    probe: _Probe | None = None


def admin_routes(policies: Policies, admin: Admin, metrics: Metrics) -> list[Route]:
    """`POST /admin/policies/{name}/publish`."""
    running: set[asyncio.Task[None]] = set()

    async def publish(request: Request) -> Response:
        check_token(request, admin.token)
        check_content_type(request)
        policy = policies.get(request.path_params["name"], "")
        order = _parse(await read_body(request))
        weights = await asyncio.to_thread(_weights_below, admin.weights_dir, order.weights)
        probe = None if order.probe is None else Probe(**order.probe.model_dump(exclude_none=True))
        task = asyncio.ensure_future(
            policy.engine.publish(weights, order.version, probe=probe, drain_timeout_s=admin.drain_timeout_s)
        )
        # Whoever asked may leave meanwhile: then it is done all the same.
        running.add(task)
        task.add_done_callback(running.discard)
        try:
            await asyncio.shield(task)
        except PublishError as error:
            metrics.publishes.labels(policy.name, "refused").inc()
            raise ApiError(409, str(error), code="publish_refused") from None
        metrics.publishes.labels(policy.name, "published").inc()
        return json_response({"policy": policy.name, "policy_version": policy.engine.policy_version})

    return [Route("/admin/policies/{name:path}/publish", publish, methods=["POST"])]


def _parse(body: bytes) -> _Publish:
    try:
        return _Publish.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise invalid(f"{where or 'the body'}: {fault['msg']}", param=where or None) from None


def _weights_below(root: Path, given: str) -> Path:
    """The directory that is meant, once it and all weight files in it are surely below `root`."""
    outside = ApiError(
        403,
        f"{given!r} is not below the endpoint's --weights-dir: put the weights there, as files and no links out",
        param="weights",
        code="weights_outside",
    )
    if not Path(given).is_absolute() or "\0" in given:
        raise outside
    root, directory = root.resolve(), Path(given).resolve()
    if not directory.is_relative_to(root):
        raise outside
    try:
        files = weight_files(directory)
    except PublishError as error:
        raise ApiError(409, str(error), param="weights", code="publish_refused") from None
    if not all(file.resolve().is_relative_to(root) for file in [*files, directory / "config.json"]):
        raise outside
    return directory
