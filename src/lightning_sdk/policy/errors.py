"""What the endpoint answers when it does not do what was asked: status codes, and bodies as clients expect them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final


class ApiError(Exception):
    """One refusal. `param` names the request's field at fault, `code` is what programs compare."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = headers or {}


def openai_error(error: ApiError) -> dict[str, Any]:
    """The body of a refusal as OpenAI's clients read it."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


# What Anthropic's clients call what a status says.
_ANTHROPIC_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """The body of a refusal as Anthropic's clients read it."""
    kind = _ANTHROPIC_KINDS.get(error.status) or (
        "invalid_request_error" if error.status < 500 else "api_error"
    )
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is not one that this endpoint understands or can honour."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, why: str) -> ApiError:
    """400: a parameter that would change the result, and that this endpoint does not implement."""
    return invalid(f"{param!r} is not supported here: {why}", param=param, code="unsupported_parameter")


def forced_call() -> ApiError:
    """400: a call of a tool that must be made."""
    return unsupported(
        "tool_choice", "forcing a call would need constrained sampling; 'auto' and 'none' are accepted"
    )


def model_not_found(asked: str, served: Iterable[str]) -> ApiError:
    """404: another model than those that are served."""
    return ApiError(
        404,
        f"the model {asked!r} does not exist here: this endpoint serves {', '.join(map(repr, served))}",
        param="model",
        code="model_not_found",
    )


def context_exceeded(
    context: int, prompt: int, completion: int | None, *, at_least: bool = False
) -> ApiError:
    """400: prompt and answer do not fit the model's context.

    Args:
        context: tokens that the model can attend to.
        prompt: tokens of the prompt.
        completion: tokens that were asked for; None where the request set no limit.
        at_least: the prompt may have more tokens than that: they were not counted.
    """
    asked = f"{prompt} in the messages"
    if completion is not None:
        asked = f"{prompt + completion} ({prompt} in the messages, {completion} in the completion)"
    bound = "at least " if at_least else ""
    return invalid(
        f"this model's maximum context length is {context} tokens, but the request needs {bound}{asked}: "
        "shorten the messages or lower max_tokens",
        param="messages",
        code="context_length_exceeded",
    )


def unauthorized() -> ApiError:
    """401: the bearer token is missing or wrong."""
    return ApiError(
        401,
        "this endpoint needs its bearer token: set it as the client's api_key",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def queue_full(limit: int) -> ApiError:
    """429: more answers are waited for than the queue may hold."""
    return ApiError(
        429,
        f"{limit} answers are waiting already, which is this endpoint's limit: try again later",
        code="queue_full",
        kind="rate_limit_error",
        headers={"retry-after": "1"},
    )


def shutting_down() -> ApiError:
    """503: the endpoint takes no more requests."""
    return ApiError(503, "this endpoint is shutting down", code="shutting_down", kind="server_error")


def internal(error: BaseException) -> ApiError:
    """500: our own failure, by its type only (a message may hold what others sent)."""
    return ApiError(
        500,
        f"the engine failed ({type(error).__name__}): the endpoint's log says more",
        code="engine_error",
        kind="server_error",
    )
