"""The routes of the endpoint, as a Starlette application over its policies."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightning_sdk.plugins import AGENT_HEADER, CALL_ID_HEADER, POLICY_HEADER, SPLIT_HEADER
from lightning_sdk.policy.admin import Admin, admin_routes
from lightning_sdk.policy.answers import CallTags
from lightning_sdk.policy.apis import APIS, Api
from lightning_sdk.policy.errors import ApiError, internal, openai_error
from lightning_sdk.policy.harness import Harness
from lightning_sdk.policy.harness_calls import NOT_RECORDED, HarnessCall, Recording
from lightning_sdk.policy.harness_routes import harness_routes
from lightning_sdk.policy.http import (
    ClientGoneError,
    check_content_type,
    check_token,
    json_response,
    read_body,
    unless_gone,
)
from lightning_sdk.policy.metrics import CONTENT_TYPE, Metrics
from lightning_sdk.policy.policies import Policies, Policy
from lightning_sdk.policy.recording import choose_call_id
from lightning_sdk.policy.service import Service
from lightning_sdk.policy.streams import EventStream

_log = logging.getLogger(__name__)

_Handler = Callable[[Request], Awaitable[Response]]


def make_app(
    policies: Policies,
    *,
    token: str | None = None,
    admin: Admin | None = None,
    harness: Harness | None = None,
) -> Starlette:
    """The application.

    Args:
        policies: who answers.
        token: the bearer token that every route for agents asks for; None: none is needed.
        admin: who may publish weights; None: nobody, the admin routes do not exist.
        harness: where the rollouts of programs without our client are; None: their routes do not exist.
    """
    metrics = Metrics(policies)
    routes = _Routes(policies, token, harness, metrics)
    told = [Route(f"/v1/{api.path}", routes.answering(api), methods=["POST"]) for api in APIS]
    told += [
        Route("/v1/models", routes.models, methods=["GET"]),
        Route("/v1/models/{model:path}", routes.model, methods=["GET"]),
    ]
    if harness is not None:
        told += [
            Route(f"/r/{{rollout}}{route.path}", route.endpoint, methods=route.methods) for route in told
        ]
        told += harness_routes(harness, routes.check)

    async def answer_refusal(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        metrics.refusals.labels(error.status, error.code or "").inc()
        return json_response(openai_error(error), status=error.status, headers=error.headers)

    async def answer_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = f"{request.method} {request.url.path}: {error.detail}"
        return await answer_refusal(
            request, ApiError(error.status_code, told, headers=dict(error.headers or {}))
        )

    async def answer_failure(request: Request, error: Exception) -> Response:
        return await answer_refusal(request, internal(error))

    return Starlette(
        routes=[
            *told,
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/health", routes.health, methods=["GET"]),
            *(admin_routes(policies, admin, metrics) if admin is not None else []),
        ],
        exception_handlers={
            ApiError: answer_refusal,
            HTTPException: answer_http_error,
            Exception: answer_failure,
        },
    )


@dataclass(slots=True)
class _Call:
    """A call that came in: what it says of itself, who records it, and the headers of its answer."""

    tags: CallTags
    recording: Recording

    @property
    def headers(self) -> dict[str, str]:
        return {CALL_ID_HEADER: self.tags.call_id}


class _Routes:
    def __init__(
        self, policies: Policies, token: str | None, harness: Harness | None, metrics: Metrics
    ) -> None:
        self._policies = policies
        self._metrics = metrics
        self._token = token
        self._harness = harness
        self._service = Service(policies, metrics)

    def check(self, request: Request) -> None:
        """Refuse who does not know the token."""
        if self._token is not None:
            check_token(request, self._token)

    def answering(self, api: Api) -> _Handler:
        """The route of an API."""

        async def handle(request: Request) -> Response:
            call = _Call(_call_tags(request), NOT_RECORDED)
            try:
                return await self._answer(api, request, call)
            except ClientGoneError:
                call.recording.finish("cancelled")
                return Response(status_code=499, headers=call.headers)
            except ApiError as error:
                return self._refused(api, call, error)
            except Exception as error:
                # Here and not further out, where the server would close the connection under the next request.
                _log.exception("%s failed", request.url.path)
                return self._refused(api, call, internal(error))
            except BaseException:
                call.recording.finish("cancelled")
                raise

        return handle

    async def _answer(self, api: Api, request: Request, call: _Call) -> Response:
        self.check(request)
        check_content_type(request)
        body = await read_body(request)
        if self._harness is not None and "rollout" in request.path_params:
            self._join(self._harness, api, request, call, body)
        exchange = await unless_gone(request, self._service.begin(api, body, call.tags))
        if not exchange.asked.is_streamed:
            whole = await unless_gone(request, self._service.complete(exchange))
            response = json_response(whole, headers=call.headers)
            call.recording.answered(200, bytes(response.body))
            call.recording.finish("ok")
            return response
        rest = self._service.stream(exchange)
        try:
            first = await unless_gone(request, anext(rest))
        except BaseException:
            await rest.aclose()
            raise
        return EventStream(api, first, rest, call.recording, call.headers)

    def _join(self, harness: Harness, api: Api, request: Request, call: _Call, body: bytes) -> None:
        """Make it a call of the rollout in its path, under an id of ours: what the caller says may repeat."""
        recording = HarnessCall(
            harness,
            request.path_params["rollout"],
            api=api.name,
            path=request.url.path,
            agent=unquote(request.headers.get(AGENT_HEADER, "")),
            request=body,
        )
        call.recording = recording
        call.tags = replace(
            call.tags, call_id=recording.call_id, split=recording.split, routed=False, any_model=True
        )

    def _refused(self, api: Api, call: _Call, error: ApiError) -> Response:
        self._metrics.refusals.labels(error.status, error.code or "").inc()
        headers = {**error.headers, **call.headers}
        response = json_response(api.refusal(error), status=error.status, headers=headers)
        call.recording.answered(error.status, bytes(response.body))
        call.recording.finish("error", error)
        return response

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        self.check(request)
        return json_response({"object": "list", "data": [_card(policy) for policy in self._policies]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{model}`."""
        self.check(request)
        return json_response(_card(self._policies.get(None, request.path_params["model"])))

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`."""
        self.check(request)
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def health(self, request: Request) -> Response:
        """`GET /health`."""
        loads = [policy.engine.load for policy in self._policies]
        problems = [each.engine.problem for each in self._policies if each.engine.problem is not None]
        told: dict[str, Any] = {
            "status": problems[0] if problems else "ok",
            "running": sum(load.running for load in loads),
            "waiting": sum(load.waiting for load in loads),
            "policy_version": self._policies.default.engine.policy_version,
            "policies": {policy.name: policy.engine.policy_version for policy in self._policies},
            "token_records_lost": sum(policy.recorder.failures for policy in self._policies),
        }
        if self._harness is not None:
            told["open_rollouts"] = self._harness.open_rollouts
            told["rollout_records_lost"] = self._harness.failures
        return json_response(told, status=503 if problems else 200)


def _card(policy: Policy) -> dict[str, Any]:
    """A model as the API lists it."""
    return {
        "id": policy.name,
        "object": "model",
        "created": policy.created_s,
        "owned_by": "lightning_sdk",
        "max_model_len": policy.engine.context_length,
        "policy_version": policy.engine.policy_version,
    }


def _call_tags(request: Request) -> CallTags:
    headers = request.headers
    policy, split = headers.get(POLICY_HEADER), headers.get(SPLIT_HEADER)
    return CallTags(
        call_id=choose_call_id(headers.get(CALL_ID_HEADER)),
        policy=None if policy is None else unquote(policy),
        split=None if split is None else unquote(split),
        routed=AGENT_HEADER in headers,
    )
