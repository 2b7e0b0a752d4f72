"""The routes of the endpoint, as a Starlette application over its policies."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from lightning_sdk.plugins import AGENT_HEADER, CALL_ID_HEADER, POLICY_HEADER, SPLIT_HEADER
from lightning_sdk.policy import responses
from lightning_sdk.policy.admin import Admin, admin_routes
from lightning_sdk.policy.answers import Answering, CallTags
from lightning_sdk.policy.chat import Chat, ChatService
from lightning_sdk.policy.errors import ApiError, internal
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

_log = logging.getLogger(__name__)

_Handler = Callable[[Request], Awaitable[Response]]


def make_app(policies: Policies, *, token: str | None = None, admin: Admin | None = None) -> Starlette:
    """The application.

    Args:
        policies: who answers.
        token: the bearer token that every route for agents asks for; None: none is needed.
        admin: who may publish weights; None: nobody, the admin routes do not exist.
    """
    metrics = Metrics(policies)
    routes = _Routes(policies, metrics)

    async def answer_refusal(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        metrics.refusals.labels(error.status, error.code or "").inc()
        return json_response(error.body(), status=error.status, headers=error.headers)

    async def answer_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = f"{request.method} {request.url.path}: {error.detail}"
        return await answer_refusal(
            request, ApiError(error.status_code, told, headers=dict(error.headers or {}))
        )

    async def answer_failure(request: Request, error: Exception) -> Response:
        return await answer_refusal(request, internal(error))

    def guarded(handler: _Handler) -> _Handler:
        async def handle(request: Request) -> Response:
            if token is not None:
                check_token(request, token)
            try:
                return await handler(request)
            except (ApiError, HTTPException):
                raise
            except Exception as error:
                # Here and not further out, where the server would close the connection under the next request.
                _log.exception("%s failed", request.url.path)
                raise internal(error) from error

        return handle

    return Starlette(
        routes=[
            Route("/v1/chat/completions", guarded(routes.chat_completions), methods=["POST"]),
            Route("/v1/models", guarded(routes.models), methods=["GET"]),
            Route("/v1/models/{model:path}", guarded(routes.model), methods=["GET"]),
            Route("/metrics", guarded(routes.metrics), methods=["GET"]),
            Route("/health", routes.health, methods=["GET"]),
            *(admin_routes(policies, admin, metrics) if admin is not None else []),
        ],
        exception_handlers={
            ApiError: answer_refusal,
            HTTPException: answer_http_error,
            Exception: answer_failure,
        },
    )


class _Routes:
    def __init__(self, policies: Policies, metrics: Metrics) -> None:
        self._policies = policies
        self._metrics = metrics
        self._chat = ChatService(Answering(policies, metrics))

    async def chat_completions(self, request: Request) -> Response:
        tags = _call_tags(request)
        headers = {CALL_ID_HEADER: tags.call_id}
        try:
            check_content_type(request)
            body = await read_body(request)
            chat = await unless_gone(request, self._chat.begin(body, tags))
            if chat.request.stream:
                return await self._stream(request, chat, headers)
            whole = await unless_gone(request, self._chat.complete(chat))
            return json_response(whole, headers=headers)
        except ClientGoneError:
            return Response(status_code=499, headers=headers)
        except ApiError as error:
            error.headers.update(headers)
            raise

    async def _stream(self, request: Request, chat: Chat, headers: Mapping[str, str]) -> Response:
        chunks = self._chat.stream(chat)
        try:
            first = await unless_gone(request, anext(chunks))
        except BaseException:
            await chunks.aclose()
            raise
        return _EventStream(_events(first, chunks), headers=headers, media_type="text/event-stream")

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [_card(policy) for policy in self._policies]})

    async def model(self, request: Request) -> Response:
        return json_response(_card(self._policies.get(None, request.path_params["model"])))

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def health(self, request: Request) -> Response:
        loads = [policy.engine.load for policy in self._policies]
        problems = [each.engine.problem for each in self._policies if each.engine.problem is not None]
        return json_response(
            {
                "status": problems[0] if problems else "ok",
                "running": sum(load.running for load in loads),
                "waiting": sum(load.waiting for load in loads),
                "policy_version": self._policies.default.engine.policy_version,
                "policies": {policy.name: policy.engine.policy_version for policy in self._policies},
                "token_records_lost": sum(policy.recorder.failures for policy in self._policies),
            },
            status=503 if problems else 200,
        )


def _card(policy: Policy) -> dict[str, Any]:
    engine = policy.engine
    return responses.model_card(policy.name, policy.created_s, engine.context_length, engine.policy_version)


def _call_tags(request: Request) -> CallTags:
    headers = request.headers
    policy, split = headers.get(POLICY_HEADER), headers.get(SPLIT_HEADER)
    return CallTags(
        call_id=choose_call_id(headers.get(CALL_ID_HEADER)),
        policy=None if policy is None else unquote(policy),
        split=None if split is None else unquote(split),
        routed=AGENT_HEADER in headers,
    )


class _EventStream(StreamingResponse):
    """A stream whose source is closed at once when the client is gone, not when garbage is collected."""

    body_iterator: AsyncGenerator[bytes, None]

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


async def _events(
    first: dict[str, Any], rest: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        try:
            yield _event(first)
            async for chunk in rest:
                yield _event(chunk)
        except ApiError as error:
            yield _event(error.body())
        except Exception as error:
            _log.exception("a stream failed")
            yield _event(internal(error).body())
    yield b"data: [DONE]\n\n"


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"
